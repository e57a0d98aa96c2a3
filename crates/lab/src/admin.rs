//! The server's pages over HTTP.

use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest that asking may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest response, bytes.
const MOST: u64 = 16 << 20;

/// Asks for a page such as `GET /metrics`; its body.
///
/// # Errors
/// There is no response, or its status is not 200.
pub(crate) fn ask(address: SocketAddr, what: &str, token: Option<&str>, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let length = body.len();
    // HTTP/1.0: the response ends with the connection and never comes in chunks (RFC 9112 §6.1).
    let request =
        format!("{what} HTTP/1.0\r\nHost: {address}\r\n{token}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.take(MOST).read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    if head.split(' ').nth(1) == Some("200") {
        return Ok(body.to_owned());
    }
    let status = head.lines().next().unwrap_or("no response");
    Err(Error::other(format!("{what}: {status}")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_request_has_a_token_and_a_body() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for response in ["HTTP/1.0 200 OK\r\n\r\npage", "HTTP/1.0 503 Busy\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                heard.push(String::from_utf8(request).unwrap());
                stream.write_all(response.as_bytes()).unwrap();
            }
            heard
        });
        let put = || ask(address, "PUT /page", Some("secret"), "{}");
        assert_eq!(put().unwrap(), "page");
        assert_eq!(put().unwrap_err().to_string(), "PUT /page: HTTP/1.0 503 Busy");
        assert_eq!(put().unwrap_err().to_string(), "PUT /page: no response");
        let heard = server.join().unwrap();
        assert_eq!(
            heard[0],
            format!(
                "PUT /page HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer secret\r\nContent-Length: 2\r\n\r\n{{}}"
            )
        );
        // Not the port of before, which another test may have by now.
        assert!(ask(([127, 0, 0, 1], 1).into(), "GET /", None, "").is_err());
    }
}
