//! Small requests to the admin address of a running server.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest time for connecting, and for each read of a page.
const STEP: Duration = Duration::from_secs(5);
/// Longest time for a whole request.
const WHOLE: Duration = Duration::from_secs(20);
/// Largest response, bytes.
const MOST: usize = 16 << 20;

/// The page at `url`, which begins with `http://`.
///
/// # Errors
/// The reason, in words.
pub(crate) fn get(url: &str) -> Result<String, String> {
    let (authority, path) = split(url)?;
    let mut stream = connect(&authority)?;
    let io = |error: std::io::Error| error.to_string();
    stream.set_read_timeout(Some(STEP)).map_err(io)?;
    stream.set_write_timeout(Some(STEP)).map_err(io)?;
    // HTTP/1.0: the response ends with the connection and never has chunks (RFC 9112 §6.1).
    let request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: text/plain, */*\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(io)?;
    match answer(&read_all(&mut stream)?)? {
        (200, _, body) => Ok(body),
        (_, line, _) => Err(format!("the response is {line:?}")),
    }
}

/// A request to the admin pages.
#[derive(Clone, Copy)]
pub(super) struct Question<'q> {
    pub(super) method: &'q str,
    pub(super) path: &'q str,
    pub(super) token: &'q str,
    pub(super) body: &'q str,
}

/// Status and body of the response of the server at `authority`.
///
/// # Errors
/// The reason, in words.
pub(super) fn ask(authority: &str, question: &Question<'_>) -> Result<(u16, String), String> {
    let Question {
        method,
        path,
        token,
        body,
    } = question;
    // Text in the request must not be able to end a line.
    if !token.bytes().chain(path.bytes()).all(|b| b.is_ascii_graphic()) {
        return Err("the token must be of visible ASCII characters".to_owned());
    }
    let mut stream = connect(authority)?;
    let io = |error: std::io::Error| error.to_string();
    // A removal is on disk before its response, and a disk may be busy.
    stream.set_read_timeout(Some(WHOLE)).map_err(io)?;
    stream.set_write_timeout(Some(STEP)).map_err(io)?;
    let length = body.len();
    let request = zeroize::Zeroizing::new(format!(
        "{method} {path} HTTP/1.0\r\nHost: {authority}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    stream.write_all(request.as_bytes()).map_err(io)?;
    let (status, _, body) = answer(&read_all(&mut stream)?)?;
    Ok((status, body))
}

/// Authority with a port, and path.
fn split(url: &str) -> Result<(String, String), String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or("only http:// can be read here")?;
    // Text in the request must not be able to end a line.
    if !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("the address must be of visible ASCII characters".to_owned());
    }
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => (&rest[..at], rest[at..].to_owned()),
        Some(at) => (&rest[..at], format!("/{}", &rest[at..])),
        None => (rest, "/metrics".to_owned()),
    };
    if authority.is_empty() || authority.contains('@') {
        return Err("write the address as http://HOST:PORT/metrics".to_owned());
    }
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    let authority = if has_port {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    Ok((authority, path))
}

/// Connects to the first address that accepts.
fn connect(authority: &str) -> Result<TcpStream, String> {
    let addresses = authority.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut last = "the name has no address".to_owned();
    for address in addresses.take(8) {
        match TcpStream::connect_timeout(&address, STEP) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
}

/// Reads until the peer closes.
fn read_all(stream: &mut TcpStream) -> Result<Vec<u8>, String> {
    let until = Instant::now() + WHOLE;
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let length = stream.read(&mut part).map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(answer);
        }
        answer.extend_from_slice(part.get(..length).unwrap_or_default());
        if answer.len() > MOST {
            return Err(format!("the response is longer than {} MiB", MOST >> 20));
        }
        if Instant::now() > until {
            return Err(format!("no end of the response after {} s", WHOLE.as_secs()));
        }
    }
}

/// Status, first line and body of a response.
fn answer(answer: &[u8]) -> Result<(u16, String, String), String> {
    let blank = b"\r\n\r\n";
    let end = answer
        .windows(blank.len())
        .position(|at| at == blank)
        .ok_or("the response is not HTTP")?;
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).into_owned();
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err("the response is not HTTP".to_owned());
    }
    let status = words.next().and_then(|code| code.parse().ok());
    let status = status.ok_or("the response is not HTTP")?;
    let body = answer.get(end + blank.len()..).unwrap_or_default();
    let lengths = head.lines().filter_map(|line| line.split_once(':'));
    for (name, value) in lengths {
        if name.eq_ignore_ascii_case("content-length")
            && value
                .trim()
                .parse::<usize>()
                .is_ok_and(|length| length > body.len())
        {
            return Err("the response was cut off".to_owned());
        }
    }
    let body = String::from_utf8(body.to_vec()).map_err(|_| "the response is not UTF-8")?;
    Ok((status, line.to_owned(), body))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Responds to one request with `answer`. Returns the request and the client's result.
    fn asked(path: &str, answer: &'static str) -> (String, Result<String, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut asked = Vec::new();
            let mut part = [0; 1024];
            while !asked.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut part).expect("a request");
                asked.extend_from_slice(&part[..length]);
            }
            stream.write_all(answer.as_bytes()).expect("writes");
            String::from_utf8(asked).expect("text")
        });
        let got = get(&format!("http://{address}{path}"));
        (server.join().expect("ends"), got)
    }

    #[test]
    fn a_page_is_read_whole() {
        let (asked, got) = asked("/m?x=1", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na 1\n\r\n");
        assert!(
            asked.starts_with("GET /m?x=1 HTTP/1.0\r\nHost: 127.0.0.1:"),
            "{asked}"
        );
        assert_eq!(got, Ok("a 1\n\r\n".to_owned()));
    }

    #[test]
    fn other_answers_are_errors() {
        for (answer, why) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na", "cut off"),
            ("220 smtp.example.com\r\n\r\n", "not HTTP"),
            ("", "not HTTP"),
        ] {
            let error = asked("/", answer).1.expect_err(answer);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn addresses_are_split() {
        let of = |url| split(url).expect("an address");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("http://a:8080/metrics"), pair("a:8080", "/metrics"));
        assert_eq!(of("http://a"), pair("a:80", "/metrics"));
        assert_eq!(of("http://[::1]:8080/x#y"), pair("[::1]:8080", "/x"));
        assert_eq!(of("http://[::1]?q"), pair("[::1]:80", "/?q"));
        for wrong in [
            "https://a/",
            "http://",
            "http:///x",
            "http://u:p@a/",
            "http://a/\r\nX: y",
            "http://é/",
        ] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_closed_admin_port_is_an_error() {
        // While the other end of a connection is kept, its port has no listener.
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let kept = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        let address = kept.local_addr().expect("an address");
        assert!(get(&format!("http://{address}/metrics")).is_err());
    }
}
