//! What the crowd says on its standard output: `ready N`, and JSON, a line each. The lab reads it with the same
//! types.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::Outcome;

/// An order to the phones: say what came since the last order.
pub(crate) const COUNT: &str = "count";
/// The same, and answer no more.
pub(crate) const MUTE: &str = "mute";

/// Idle connections, when they have ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Asked for.
    pub asked: usize,
    /// Opened.
    pub opened: usize,
    /// That the server has ended.
    pub closed: usize,
    /// Seconds until all were open.
    pub seconds: f64,
}

/// Slow or deaf clients, when they have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attackers {
    /// Asked for.
    pub asked: usize,
    /// At the end.
    pub there: usize,
    /// Opened.
    pub opened: usize,
    /// By the server.
    pub cut: usize,
    /// Connections that could not be opened.
    pub refused: usize,
}

/// Handshakes one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Handshakes {
    /// Done.
    pub done: usize,
    /// Of which resumed a session.
    pub resumed: usize,
    /// Failed.
    pub failed: usize,
    /// Seconds that they took.
    pub seconds: f64,
    /// Done, each second.
    pub per_second: f64,
    /// Version and suite.
    pub agreed: String,
}

/// Clients that came back at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Storm {
    /// Asked for.
    pub asked: usize,
    /// With a response.
    pub served: usize,
    /// Of which resumed a session.
    pub resumed: usize,
    /// Attempts of all clients.
    pub tries: u32,
    /// Attempts of the client that needed most.
    pub most_tries: u32,
    /// Seconds until the last that was served had its response.
    pub all_s: f64,
    /// Seconds until half of those that were served had theirs.
    pub median_s: f64,
    /// The same of 99 %.
    pub p99_s: f64,
    /// Seconds until all was over.
    pub took_s: f64,
}

/// Phones that have registered, when they end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phones {
    /// That were to register.
    pub asked: u32,
    /// That are registered.
    pub registered: u32,
    /// REGISTERs sent again because no response came.
    pub resent: u64,
    /// Phones without any response in the end.
    pub unanswered: u32,
    /// Responses other than 200.
    pub refused: u32,
    /// The status of the last of them.
    pub status: Option<u16>,
    /// Seconds from the first REGISTER to the last response.
    pub seconds: f64,
    /// Datagrams that the kernel did not take.
    pub unsent: u64,
}

/// What came to the phones since the last time that they were asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pings {
    /// Seconds since then.
    pub seconds: f64,
    /// OPTIONS.
    pub options: u64,
    /// Empty lines.
    pub crlf: u64,
    /// OPTIONS that were answered.
    pub answered: u64,
    /// Anything else.
    pub others: u64,
    /// Pings in each window of 100 ms.
    pub windows: Vec<u32>,
    /// Contacts by the number of OPTIONS that they got: none, one, two and so on. The last has more, too.
    pub contacts_by_pings: Vec<u64>,
}

impl Pings {
    /// Pings of both kinds.
    pub fn total(&self) -> u64 {
        self.options + self.crlf
    }

    /// The windows without the last, which is incomplete.
    pub fn whole_windows(&self) -> &[u32] {
        self.windows.split_last().map_or(&[][..], |(_, whole)| whole)
    }
}

/// A case of handshakes in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Crypto {
    /// Of TLS.
    pub version: String,
    /// Of the server's certificate.
    pub key: String,
    /// Whether sessions were resumed.
    pub resumed: bool,
    /// `ours`, or the library's `buffered` one.
    pub interface: String,
    /// So many.
    pub handshakes: usize,
    /// CPU of the server's end, microseconds.
    pub mean_us: f64,
    /// The same, of the handshake in the middle.
    pub median_us: f64,
}

/// Writes a line, whole: a reader may wait for it.
pub(crate) fn line(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes())?;
    out.flush()?;
    Ok(())
}

/// So many connections are there.
pub(crate) fn ready(count: usize) -> Outcome {
    line(&format!("ready {count}"))
}

/// The number of connections, if a line says so.
pub(crate) fn ready_count(line: &str) -> Option<usize> {
    line.trim_end().strip_prefix("ready ")?.parse().ok()
}

/// Writes a row.
pub(crate) fn row(row: &impl Serialize) -> Outcome {
    line(&serde_json::to_string(row)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_recognized() {
        assert_eq!(ready_count("ready 19000\n"), Some(19_000));
        assert_eq!(ready_count("{\"asked\":1}\n"), None);
        assert_eq!(ready_count("ready many\n"), None);
    }

    #[test]
    fn rows_are_read() {
        let idle: Idle =
            serde_json::from_str(r#"{"asked":100,"opened":99,"closed":1,"seconds":0.25}"#).unwrap();
        assert_eq!((idle.opened, idle.closed), (99, 1));
        let storm = r#"{"asked":5000,"served":5000,"resumed":4999,"tries":5003,"most_tries":2,"all_s":1.8,
            "median_s":0.9,"p99_s":1.75,"took_s":1.81}"#;
        let storm: Storm = serde_json::from_str(storm).unwrap();
        assert_eq!((storm.resumed, storm.most_tries), (4_999, 2));
        let pings = r#"{"seconds":2.0,"options":7,"crlf":2,"answered":7,"others":0,"windows":[4,5,0],
            "contacts_by_pings":[0,7]}"#;
        let pings: Pings = serde_json::from_str(pings).unwrap();
        assert_eq!((pings.total(), pings.whole_windows()), (9, &[4, 5][..]));
        assert_eq!(Pings::default().whole_windows(), [0; 0]);
        let crypto = r#"{"version":"1.3","key":"P-256","resumed":true,"interface":"ours","handshakes":900,
            "mean_us":110.5,"median_us":109.0}"#;
        let crypto: Crypto = serde_json::from_str(crypto).unwrap();
        assert!(crypto.resumed && crypto.mean_us > crypto.median_us);
        assert!(
            serde_json::from_str::<Handshakes>("{}").is_err(),
            "nothing is made up"
        );
    }
}
