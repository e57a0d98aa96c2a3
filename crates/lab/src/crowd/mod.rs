//! Many clients at once, as a child process: what `connections` brings to a server.
//!
//! ```text
//! trapezoid lab-crowd idle       hold COUNT connections, each after an OPTIONS and its 200, until stdin ends
//! trapezoid lab-crowd loris      COUNT connections on which a message or handshake never ends; until stdin ends
//! trapezoid lab-crowd deaf       COUNT connections that ask and never read a response; until stdin ends
//! trapezoid lab-crowd handshakes connect, shake hands, close, again and again, for SECONDS
//! trapezoid lab-crowd storm      COUNT clients that come back at once after the server's restart
//! trapezoid lab-crowd crypto     both ends in memory: CPU time of the server's end of a handshake
//! trapezoid lab-crowd phones     COUNT phones behind NATs register by UDP, then answer pings; until stdin ends
//! ```
//! `trapezoid lab-crowd help` lists the options. Clients come from 127.0.1.0/24, since one address alone has not
//! enough ports; each phone has an address of its own. Linux only, loopback only. What is printed is in [`said`].

mod arguments;
mod crypto;
mod deaf;
mod handshakes;
mod idle;
mod link;
mod loris;
mod phones;
pub mod said;
mod speech;
mod storm;
mod system;
mod target;

use arguments::Arguments;

/// What the parts fail with: a text for the user.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "\
usage: trapezoid lab-crowd MODE --target ADDRESS [OPTIONS]
  --transport tcp|tls|ws|wss   (tcp)
  --name NAME                  the server's SIP domain, in the URI and as server name (bench)
  --ca FILE                    verify the server by this; without it nothing is verified
  --tls12                      no TLS 1.3
  --sources N                  addresses that the clients come from (16)
  --threads N                  that open connections (4)
idle        --count N
loris       --count N  --every SECONDS between two bytes (3)
deaf        --count N  --rate N requests a second in all (2000)
handshakes  --seconds S  --resume: each connection resumes the session of the one before
storm       --count N  --timeout SECONDS of an attempt (4)  --backoff SECONDS before the second,
            twice as many before the third and so on (1)  --give-up SECONDS (120)
            --fresh: without tickets
crypto      --seconds S for each case (1)  --certificates DIRECTORY with p256.pem, p256.key, rsa.pem, rsa.key
phones      --count N  --rate N registrations a second (30000)  --port PORT of all phones (any)
            lines on stdin, each answered with what came since the last: count; mute: answer no more";

/// Does what the words of a command line say: a mode, then options.
///
/// # Errors
/// A text for the user.
pub fn run(words: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse(words)?;
    system::raise_descriptor_limit()?;
    match arguments.mode.as_str() {
        "idle" => idle::run(&arguments),
        "loris" => loris::run(&arguments),
        "deaf" => deaf::run(&arguments),
        "handshakes" => handshakes::run(&arguments),
        "storm" => storm::run(&arguments),
        "crypto" => crypto::run(&arguments),
        "phones" => phones::run(&arguments),
        "help" => said::line(USAGE),
        other => Err(format!("no mode {other:?}\n{USAGE}").into()),
    }
}
