//! A server in the public network, and user agents in homes and beside it.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use conformance::{
    Agent, Baresip, Config, DOMAIN, Home, Link, Mapping, Nat, Networks, PATIENCE, Part, Phone, Scene, Server,
    Transport, port,
};
use serde_json::Value;

/// Longer than a test takes.
const LONG_S: u32 = 600;
/// Between two looks at the list of registrations.
const LOOK: Duration = Duration::from_millis(20);
/// The port of every phone in a home.
const PHONE: u16 = 5060;

/// A user and its password.
pub(super) type User = (&'static str, &'static str);
pub(super) const ALICE: User = ("alice", "wonderland");
pub(super) const BOB: User = ("bob", "builder");

/// Homes with these mappings, which last for all of the test.
pub(crate) fn networks(mappings: &[Mapping]) -> Networks {
    networks_closing_after(LONG_S, mappings)
}

/// Homes with these mappings, which end after so many seconds without a datagram.
pub(super) fn networks_closing_after(timeout_s: u32, mappings: &[Mapping]) -> Networks {
    let nat = |mapping: &Mapping| Nat {
        mapping: *mapping,
        timeout_s,
    };
    Networks::new(&mappings.iter().map(nat).collect::<Vec<_>>())
}

/// Where a user agent is.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// Behind a NAT.
    Home(&'a Home),
    /// In the public network, at this address.
    Public(IpAddr),
}

impl Place<'_> {
    /// The address of a user agent there, as it knows it itself.
    pub(super) fn ip(self) -> IpAddr {
        match self {
            Self::Home(home) => home.phone(0).ip(),
            Self::Public(ip) => ip,
        }
    }

    /// Does something there: sockets and programs that it opens belong to the place.
    pub(super) fn enter<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Home(home) => home.inside(act),
            Self::Public(_) => act(),
        }
    }

    /// The address of a new socket there. In public several user agents share the address.
    fn socket(self) -> SocketAddr {
        match self {
            Self::Home(home) => home.phone(PHONE),
            Self::Public(ip) => SocketAddr::new(ip, 0),
        }
    }
}

/// A server that asks for credentials, with two users.
pub(super) fn config() -> Config {
    Config::new()
        .auth(&["*"])
        .user(ALICE.0, ALICE.1)
        .user(BOB.0, BOB.1)
}

/// A server in the public network.
pub(super) struct Stage {
    pub(super) server: SocketAddr,
    // In the order of their end.
    pub(super) running: Server,
    pub(super) scene: Scene,
}

impl Stage {
    pub(super) fn new(networks: &Networks, config: Config) -> Self {
        Self::at(networks, port::SERVER, config)
    }

    /// The server at another port, beside others.
    pub(super) fn at(networks: &Networks, port: u16, config: Config) -> Self {
        let scene = Scene::new();
        let server = SocketAddr::new(networks.server(), port);
        let listen = format!("transport = \"udp\"\naddress = \"{server}\"\n");
        Self {
            server,
            running: Server::start(&scene, &config.table("[[listen]]", &listen)),
            scene,
        }
    }

    /// A phone of this user that does what the test says.
    pub(super) fn agent(&self, place: Place<'_>, (user, password): User) -> Agent {
        let (from, to) = (place.socket(), self.server);
        let link = place.enter(|| Link::open(Transport::Udp, from, to, None).expect("a socket"));
        Agent::new(link, user, password)
    }

    /// A phone that plays a part by itself.
    pub(super) fn phone(&self, place: Place<'_>, part: Part) -> Phone {
        let (from, to) = (place.socket(), self.server);
        place.enter(|| Phone::start_at(from, to, Transport::Udp, part))
    }

    /// baresip, the `line`-th of the stage; `None` where it is missing and may be.
    pub(super) fn baresip(&self, place: Place<'_>, line: u16, (user, password): User) -> Option<Baresip> {
        let (line, to) = ((line, place.ip()), (Transport::Udp, self.server));
        place.enter(|| Baresip::start_at(&self.scene, line, user, password, to, None))
    }

    /// What the list of registrations says of the pings to bob's phone in this home.
    pub(super) fn ping(&self, home: &Home) -> Value {
        let what = format!("GET /api/v1/registrations/{}@{DOMAIN}", BOB.0);
        let answer = self.running.api(&what, "");
        let from = format!("{}:", home.public());
        let is_there = |row: &&Value| {
            row["source"]
                .as_str()
                .is_some_and(|source| source.starts_with(&from))
        };
        let mut rows = answer["registrations"].as_array().expect("a list").iter();
        rows.find(is_there).map_or(Value::Null, |row| row["ping"].clone())
    }

    /// Waits until [`Self::ping`] is this word.
    #[track_caller]
    pub(super) fn wait_for_ping(&self, home: &Home, word: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.ping(home);
            if found == word {
                return;
            }
            let place = home.public();
            assert!(
                Instant::now() < deadline,
                "{place}: ping stays {found}, not {word}"
            );
            thread::sleep(LOOK);
        }
    }
}

/// Alice calls bob, and one of bob's phones rings. She takes the call back.
#[track_caller]
pub(super) fn expect_ringing(alice: &mut Agent, call: &str) {
    alice.invite(BOB.0, call, "");
    alice.expect_status(180);
    alice.cancel(BOB.0, call);
    alice.expect_status(200);
    let over = alice.expect_status(487);
    alice.acknowledge_refusal(BOB.0, &over);
}
