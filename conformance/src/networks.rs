//! Several networks in one test: a public one with the server, and homes behind NATs, in network namespaces.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::STARTING;
use crate::child::wait_within;
use crate::scene::{namespaces, tool};

/// The counter of a router: datagrams from the public network for which it had no mapping.
const REFUSED: &str = "refused";

/// Set in the run of a test that has namespaces of its own.
const INSIDE: &str = "TRAPEZOID_TEST_INSIDE";
/// The address of the server in the public network.
const SERVER: &str = "203.0.113.1";
/// The address of the phone in each home, and of its router there.
const PHONE: &str = "192.168.1.2";
const ROUTER: &str = "192.168.1.1";

/// Runs a test again, as root of a user namespace with a network of its own, and says whether this is that
/// run. Otherwise it is over by then, or was skipped because the kernel refuses such namespaces.
///
/// # Panics
/// When that run fails.
pub fn in_networks(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let (Some(mut command), Some(_), Some(_)) = (namespaces(&["--net"]), tool("ip"), tool("nft")) else {
        return false;
    };
    let program = std::env::current_exe().expect("the path of this program");
    // A test that is left out of usual runs was asked for if it comes here.
    let options = ["--exact", test, "--nocapture", "--include-ignored"];
    command.arg(program).args(options);
    let status = command.env(INSIDE, "1").status().expect("this program runs");
    assert!(status.success(), "{test} in networks of its own: {status}");
    false
}

/// How a home's router translates. Linux gives each destination a mapping of its own.
#[derive(Debug, Clone, Copy)]
pub enum Mapping {
    /// The source port stays if it is free.
    PortPreserving,
    /// Each mapping has a port drawn at random.
    Random,
}

/// A home that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Nat {
    /// The choice of ports.
    pub mapping: Mapping,
    /// Seconds without a datagram after which a mapping ends, both ways seen or not.
    pub timeout_s: u32,
}

/// The public network is that of the test's process; its only host is the server.
#[derive(Debug)]
pub struct Networks {
    homes: Vec<Home>,
}

/// A network with one phone, behind a router with NAT.
#[derive(Debug)]
pub struct Home {
    router: Namespace,
    inside: Namespace,
    public: IpAddr,
}

/// A network namespace, which a child process holds.
#[derive(Debug)]
struct Namespace {
    holder: std::process::Child,
    net: File,
}

impl Networks {
    /// Makes the networks. Only for a test that [`in_networks`] runs.
    ///
    /// # Panics
    /// When that fails.
    pub fn new(nats: &[Nat]) -> Self {
        ip(&["link set lo up", &format!("addr add {SERVER}/32 dev lo")]);
        let homes = nats
            .iter()
            .enumerate()
            .map(|(number, nat)| Home::new(number, *nat));
        let homes: Vec<Home> = homes.collect();
        for (home, number) in homes.iter().zip(0..) {
            wait_within("the cable to a home", STARTING, || is_up(&wan_of(number)));
            home.wait_for_cables();
        }
        Self { homes }
    }

    /// The address of the server.
    pub fn server(&self) -> IpAddr {
        SERVER.parse().expect("an address")
    }

    /// A home by its number.
    pub fn home(&self, number: usize) -> &Home {
        &self.homes[number]
    }
}

impl Home {
    fn new(number: usize, nat: Nat) -> Self {
        let (router, inside) = (Namespace::new(), Namespace::new());
        let public = format!("203.0.113.{}", 11 + number);
        let wan = wan_of(number);
        ip(&[
            &format!("link add {wan} type veth peer name wan netns {}", router.path()),
            &format!("link set {wan} up"),
            &format!("route add {public}/32 dev {wan} src {SERVER}"),
        ]);
        router.enter(|| {
            ip(&[
                "link set lo up",
                &format!("addr add {public}/32 dev wan"),
                "link set wan up",
                &format!("route add {SERVER}/32 dev wan src {public}"),
                &format!("link add lan type veth peer name eth0 netns {}", inside.path()),
                &format!("addr add {ROUTER}/24 dev lan"),
                "link set lan up",
            ]);
            translate(nat);
        });
        inside.enter(|| {
            ip(&[
                "link set lo up",
                &format!("addr add {PHONE}/24 dev eth0"),
                "link set eth0 up",
                &format!("route add default via {ROUTER}"),
            ]);
        });
        Self {
            router,
            inside,
            public: public.parse().expect("an address"),
        }
    }

    /// The address of the home in the public network.
    pub fn public(&self) -> IpAddr {
        self.public
    }

    /// A port of the phone's address inside.
    pub fn phone(&self, port: u16) -> SocketAddr {
        SocketAddr::new(PHONE.parse().expect("an address"), port)
    }

    /// How many datagrams from the public network found no mapping at the router so far. It drops them silently.
    ///
    /// # Panics
    /// When nft does not say it.
    pub fn refused(&self) -> u64 {
        let output = self.router.enter(|| {
            let mut nft = Command::new(tool("nft").expect("nft, as before"));
            let output = nft.args(["list", "counter", "ip", "filter", REFUSED]).output();
            output.expect("nft runs").stdout
        });
        let text = String::from_utf8_lossy(&output);
        let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
        let count = words.nth(1).and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("no count in {text:?}"))
    }

    /// Pulls the cable between router and phone. The mappings of the router stay.
    pub fn unplug(&self) {
        self.router.enter(|| ip(&["link set lan down"]));
    }

    /// Puts it back. When this returns, both ends send again.
    ///
    /// # Panics
    /// When an end stays down.
    pub fn plug(&self) {
        self.router.enter(|| ip(&["link set lan up"]));
        self.wait_for_cables();
    }

    /// Waits until all ends send. The kernel notices a cable some time after it is there, as late as namespaces of other
    /// tests that end keep it busy. Until then it drops what is sent.
    fn wait_for_cables(&self) {
        wait_within("the cables of a home", STARTING, || {
            let of_router = self.router.enter(|| is_up("wan") && is_up("lan"));
            of_router && self.inside.enter(|| is_up("eth0"))
        });
    }

    /// Does something inside: sockets and programs that it opens belong to the home.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.inside.enter(act)
    }
}

/// Makes the namespace of the calling thread translate what leaves by `wan`, from nothing.
fn translate(nat: Nat) {
    let masquerade = match nat.mapping {
        Mapping::PortPreserving => "masquerade",
        Mapping::Random => "masquerade fully-random",
    };
    let rules = format!(
        "table ip nat {{\nchain leaving {{\ntype nat hook postrouting priority srcnat;\n\
         oifname \"wan\" {masquerade}\n}}\n}}\n\
         table ip filter {{\ncounter {REFUSED} {{\n}}\n\
         chain arriving {{\ntype filter hook input priority filter;\n\
         ct state established,related accept\niifname \"wan\" counter name \"{REFUSED}\" drop\n}}\n\
         chain passing {{\ntype filter hook forward priority filter; policy drop;\n\
         iifname \"lan\" accept\nct state established,related accept\n}}\n}}\n"
    );
    let mut nft = Command::new(tool("nft").expect("nft, as before"))
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft runs");
    let input = nft.stdin.take().expect("a pipe");
    { input }.write_all(rules.as_bytes()).expect("nft reads");
    assert!(nft.wait().expect("nft ends").success(), "{rules}");
    for (name, value) in [
        ("ipv4/ip_forward", 1),
        ("netfilter/nf_conntrack_udp_timeout", nat.timeout_s),
        ("netfilter/nf_conntrack_udp_timeout_stream", nat.timeout_s),
    ] {
        let path = format!("/proc/sys/net/{name}");
        fs::write(&path, value.to_string()).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// The server's end of the cable to a home.
fn wan_of(home: usize) -> String {
    format!("home{home}")
}

/// Whether an interface of the calling thread's namespace has a cable, as the kernel has noticed it.
#[track_caller]
fn is_up(interface: &str) -> bool {
    let mut command = Command::new(tool("ip").expect("ip, as before"));
    let output = command.args(["-o", "link", "show", interface]).output();
    String::from_utf8_lossy(&output.expect("ip runs").stdout).contains(" state UP ")
}

/// Runs `ip` with each of these lines, in the namespace of the calling thread.
#[track_caller]
fn ip(lines: &[&str]) {
    for line in lines {
        let mut command = Command::new(tool("ip").expect("ip, as before"));
        let output = command.args(line.split(' ')).output().expect("ip runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {line}: {error}");
    }
}

impl Namespace {
    fn new() -> Self {
        // It lives until its input ends: no longer than this process.
        let mut holder = Command::new(tool("unshare").expect("unshare, as before"));
        let holder = holder.args(["--net", "cat"]).stdin(Stdio::piped());
        let holder = holder.stdout(Stdio::null()).spawn().expect("unshare runs");
        let own = fs::read_link("/proc/self/ns/net").expect("a namespace");
        let path = format!("/proc/{}/ns/net", holder.id());
        wait_within("a namespace", STARTING, || {
            fs::read_link(&path).is_ok_and(|its| its != own)
        });
        let net = File::open(path).expect("the namespace");
        Self { holder, net }
    }

    /// The namespace as a file.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.net.as_raw_fd())
    }

    fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.net.as_fd(), kind).expect("a namespace of ours");
            act()
        };
        let done = thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
