//! The server's metrics at `/metrics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use crate::admin;

/// What names of the counters of CPU by component begin with.
const COMPONENTS: &str = "trapezoid_cpu_";

/// One reading of the page: series as they are written, and their values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) at: Instant,
    series: BTreeMap<String, f64>,
}

/// Reads the page, on which a series is for all workers together.
pub(crate) fn read(address: SocketAddr) -> std::io::Result<Page> {
    ask(address, "GET /metrics")
}

/// Reads the page with a series for each worker.
pub(crate) fn read_by_worker(address: SocketAddr) -> std::io::Result<Page> {
    ask(address, "GET /metrics?by=worker")
}

fn ask(address: SocketAddr, what: &str) -> std::io::Result<Page> {
    let body = admin::ask(address, what, None, "")?;
    Ok(Page {
        at: Instant::now(),
        series: series(&body),
    })
}

fn series(body: &str) -> BTreeMap<String, f64> {
    body.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            // A value may be followed by a timestamp; label values may hold spaces.
            let name_ends = line.find('}').map_or_else(|| line.find(' '), |at| Some(at + 1))?;
            let (name, rest) = line.split_at(name_ends);
            let value = rest.split_whitespace().next()?.parse().ok()?;
            Some((name.to_owned(), value))
        })
        .collect()
}

impl Page {
    /// A metric, summed over its labels; 0 where it is not there.
    pub(crate) fn total(&self, name: &str) -> f64 {
        let named = |key: &str| key.split('{').next() == Some(name);
        self.series
            .iter()
            .filter(|(key, _)| named(key))
            .map(|(_, value)| value)
            .sum()
    }

    /// A metric of each worker, summed over its other labels, in the order of their numbers.
    pub(crate) fn by_worker(&self, name: &str) -> Vec<f64> {
        let mut workers: BTreeMap<u32, f64> = BTreeMap::new();
        for (key, value) in &self.series {
            let number = label(key, "worker").and_then(|number| number.parse().ok());
            if let Some(number) = number.filter(|_| key.split('{').next() == Some(name)) {
                *workers.entry(number).or_default() += value;
            }
        }
        workers.into_values().collect()
    }

    /// What the counters of CPU by component have grown by since `before`.
    pub(crate) fn components_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let own = self
            .series
            .iter()
            .filter(|(name, _)| name.starts_with(COMPONENTS));
        own.map(|(name, value)| {
            let earlier = before.series.get(name).copied().unwrap_or(0.0);
            (name.clone(), (value - earlier).max(0.0))
        })
        .collect()
    }
}

/// The value of a label.
fn label<'a>(series: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = series.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

/// The value of the label `component`, else the whole name.
pub(crate) fn component(name: &str) -> String {
    let whole = name.strip_prefix(COMPONENTS).unwrap_or(name);
    label(name, "component").unwrap_or(whole).to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const TEXT: &str = "# HELP x y\n\
        trapezoid_cpu_seconds_total{component=\"parse\",worker=\"0\"} 1.5\n\
        trapezoid_cpu_seconds_total{component=\"parse\",worker=\"1\"} 0.5 1700000000\n\
        trapezoid_credential_batches_total{size=\"8\"} 12\n\
        trapezoid_credential_batches_total{size=\"16\"} 30\n\
        trapezoid_credential_batches_other 5\n\
        plain 7\n# EOF\n";

    fn page(text: &str) -> Page {
        Page {
            at: Instant::now(),
            series: series(text),
        }
    }

    #[test]
    fn series_are_added_up() {
        let page = page(TEXT);
        assert_eq!(page.total("trapezoid_credential_batches_total"), 42.0);
        assert_eq!(page.total("plain"), 7.0);
        assert_eq!(page.total("none"), 0.0);
    }

    #[test]
    fn series_of_workers_are_told_apart() {
        let page = page(
            "requests_total{method=\"INVITE\",worker=\"0\"} 5\n\
             requests_total{method=\"BYE\",worker=\"0\"} 1\n\
             requests_total{method=\"INVITE\",worker=\"10\"} 9\n\
             requests_total{method=\"INVITE\",worker=\"2\"} 7\n\
             requests_other{worker=\"3\"} 4\n",
        );
        assert_eq!(page.by_worker("requests_total"), [6.0, 7.0, 9.0]);
        assert_eq!(page.by_worker("none"), [0.0; 0]);
    }

    #[test]
    fn what_components_grew_by() {
        let after = TEXT.replace(" 1.5", " 4.0");
        let grown = page(&after).components_since(&page(TEXT));
        assert_eq!(grown.len(), 2);
        assert_eq!(
            grown["trapezoid_cpu_seconds_total{component=\"parse\",worker=\"0\"}"],
            2.5
        );
        let names: Vec<String> = grown.keys().map(|name| component(name)).collect();
        assert_eq!(names, ["parse", "parse"]);
        assert_eq!(component("trapezoid_cpu_idle_total"), "idle_total");
    }

    #[test]
    fn it_is_read_over_http() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for answer in [
                format!("HTTP/1.0 200 OK\r\n\r\n{TEXT}"),
                "HTTP/1.0 404 No\r\n\r\n".to_owned(),
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert_eq!(read(address).unwrap().total("plain"), 7.0);
        assert!(read(address).is_err());
        server.join().unwrap();
        // Not the port of before, which another test may have by now.
        assert!(read(([127, 0, 0, 1], 1).into()).is_err(), "nothing listens there");
    }
}
