//! What the tests of a database stand on: the database, a relay in front of it, a server, a phone that
//! answers, and a load of three kinds of requests.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use conformance::digest::{md5, sha256};
use conformance::{
    Class, Config, DOMAIN, Load, Outcome, Part, Phone, Plan, Scene, Server, Transport, percentile, port,
    wait_until,
};
use delay_relay::{Options, Relay};
use test_databases::Database;

/// The domain without authentication.
pub(crate) const OPEN_DOMAIN: &str = "b.example";
/// Requests of each class in a second.
const RATE: u32 = 50;
const REGULARS: usize = 10;
/// More than a test has use for, on a slow machine too: a minute of them.
const NEW: usize = 3000;
/// A look-up that takes this long has waited for the database.
const WAITED: Duration = Duration::from_millis(500);
/// Connections to the database, where the configuration says nothing else.
pub(crate) const CONNECTIONS: f64 = 8.0;
/// How many requests of a class say enough of a time.
const SOME: usize = 30;
/// How many of new users a fault lasts for, where nothing else is said. Where each is refused at its deadline, and no
/// sooner, these are still more than those that wait for it when the fault is over.
const LASTS: usize = 150;
/// What the passwords of all users begin with.
const MARK: &str = "Never-In-A-Log";
/// Beyond a deadline, for machines that are busy with other things.
const MARGIN: Duration = Duration::from_secs(10);
/// How long a change of the table is news: MariaDB gives its time in seconds, and until that is two seconds
/// ago each look counts as a change.
const NEWS: Duration = Duration::from_millis(3_100);

/// A user's password.
pub(crate) fn password(user: &str) -> String {
    format!("{MARK}-{user}")
}

/// Users of [`Class::Regular`].
pub(crate) fn regulars() -> Vec<String> {
    (0..REGULARS).map(|n| format!("regular{n}")).collect()
}

/// Users of [`Class::New`].
pub(crate) fn new_users() -> Vec<String> {
    (0..NEW).map(|n| format!("new{n}")).collect()
}

fn ha1(user: &str) -> String {
    md5(&format!("{user}:{DOMAIN}:{}", password(user)))
}

/// The statement that puts users into the table that `trapezoid user add` made.
pub(crate) fn insert(users: &[String]) -> String {
    let mut sql = "INSERT INTO subscriber (username, domain, ha1) VALUES ".to_owned();
    for (n, user) in users.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(sql, "{comma}('{user}','{DOMAIN}','{}')", ha1(user));
    }
    sql
}

/// `url` of a database, by way of a relay.
pub(crate) fn url_by(database: &Database, relay: &Relay) -> String {
    let own = format!(":{}/", database.port());
    let by = format!(":{}/", relay.address().port());
    database.url().replace(&own, &by)
}

/// A relay without delay in front of a database.
pub(crate) fn relay(database: &Database) -> Relay {
    let target = format!("{}:{}", database.host(), database.port());
    let listen = "127.0.0.1:0".parse().expect("an address");
    let target = target.parse().expect("an address");
    Relay::start(Options::new(listen, target)).expect("a relay")
}

/// The configuration of all tests here: two domains, of which one asks for credentials, and a next
/// hop for what is for the other.
pub(crate) fn config(scene: &Scene, url: &str, credentials: &str) -> Config {
    Config::new()
        .auth(&["REGISTER", "INVITE", "MESSAGE"])
        .subscribers(&format!("url = \"{url}\""))
        .table(
            "[[domain]]",
            &format!("name = \"{OPEN_DOMAIN}\"\nauth = {{ methods = [] }}"),
        )
        .table("[credentials]", credentials)
        .table("[log]", "level = \"debug\"")
        .route(&format!(
            "when = {{ domain = \"{OPEN_DOMAIN}\" }}\ndo = {{ relay = \"sip:{}\" }}",
            scene.at(port::CALLEE)
        ))
}

/// What differs between stages.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The keys of `[credentials]`.
    pub(crate) credentials: &'static str,
    /// `deadline_ms` among them.
    pub(crate) deadline: Duration,
    /// The response to users that cannot be looked up.
    pub(crate) unavailable: u16,
    /// Whether users are in the database when the server starts.
    pub(crate) filled: bool,
    /// Of the relay, each way.
    pub(crate) delay: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            // A database that has just come back may take seconds for an answer on a busy machine, and a single look-up
            // that reaches its deadline has all that wait refused.
            credentials: "deadline_ms = 10000",
            deadline: Duration::from_secs(10),
            unavailable: 503,
            filled: true,
            delay: Duration::ZERO,
        }
    }
}

/// The times of a fault. From `begun` on responses may differ; from `struck` until `over` they must. To make a fault
/// takes seconds on a busy machine, and until `struck` all may go well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) begun: Instant,
    pub(crate) struck: Instant,
    pub(crate) over: Instant,
}

impl Fault {
    /// A fault that struck at once.
    pub(crate) fn between(begun: Instant, over: Instant) -> Self {
        Self {
            begun,
            struck: begun,
            over,
        }
    }
}

/// Everything, ended in this order.
pub(crate) struct Stage {
    load: Load,
    pub(crate) server: Server,
    _phone: Phone,
    pub(crate) relay: Relay,
    pub(crate) database: Database,
    setting: Setting,
    begun: Instant,
    pub(crate) scene: Scene,
}

impl Stage {
    /// Sets it up on a database, and begins the load. Where the table is filled, it returns when all regulars'
    /// secrets are in memory and no change of the table is news.
    pub(crate) fn set(database: Database, setting: Setting) -> Self {
        let scene = Scene::new();
        let relay = relay(&database);
        let delayed = relay.control().set_delay(setting.delay, setting.delay);
        delayed.expect("a delay");
        let mut config = config(&scene, &url_by(&database, &relay), setting.credentials);
        if setting.filled {
            // The first makes the table.
            config = config.user("first", &password("first"));
        }
        let phone = Phone::start(&scene, Transport::Udp, port::CALLEE, Part::Answer(Duration::ZERO));
        let server = Server::start(&scene, &config);
        if setting.filled {
            Self::fill(&database);
        }
        let plan = Plan {
            open_domain: OPEN_DOMAIN,
            regulars: regulars(),
            new: new_users(),
            password,
            rate: [RATE; 3],
        };
        let mut stage = Self {
            load: Load::start(&scene, plan),
            server,
            _phone: phone,
            relay,
            database,
            begun: Instant::now(),
            setting,
            scene,
        };
        if stage.setting.filled {
            stage.settle(&regulars());
            // The first look-ups prepare their statements, which on a busy machine may take their deadline.
            stage.load.wait_for_success(Class::New, SOME / 2);
            stage.begun = Instant::now();
        } else {
            stage.load.go_on();
        }
        stage
    }

    /// Puts all users into the table.
    pub(crate) fn fill(database: &Database) {
        database.sql(&insert(&[regulars(), new_users()].concat()));
    }

    /// Waits until what has changed in the table by now is no news any more, and the secrets of these users, forgotten
    /// for it, are in memory again.
    ///
    /// Meanwhile the load is at rest: all that passes the relay then, on connections that are up, are looks at the
    /// time of the last change. Once one of them that began late enough has its answer, which the next shows, no
    /// change is seen any more.
    pub(crate) fn settle(&self, users: &[String]) {
        let changed = Instant::now();
        self.load.rest();
        self.server
            .wait_for_metric("trapezoid_credential_connections", "", |n| n >= CONNECTIONS);
        std::thread::sleep(NEWS.saturating_sub(changed.elapsed()));
        let looks = || self.relay.counters().to_target.chunks;
        let before = looks();
        wait_until("two looks at the table", || looks() >= before + 2);
        let settled = Instant::now();
        self.load.go_on();
        for user in users {
            self.load.wait_for_status(user, 200, settled);
        }
        // And some, to compare with.
        self.load.wait_for(Class::Open, SOME, settled);
    }

    /// Waits until users that were never looked up before are served again. Returns since when they are.
    pub(crate) fn recovered(&self) -> Instant {
        self.load.wait_for_success(Class::New, SOME / 2)
    }

    /// Waits until regulars are.
    pub(crate) fn recovered_all(&self) {
        self.load.wait_for_success(Class::Regular, 2 * REGULARS);
    }

    /// Makes a fault. Ends it when some requests of new users that began after it struck have their final
    /// responses.
    pub(crate) fn during(&self, begin: impl FnOnce(), end: impl FnOnce()) -> Fault {
        let begun = Instant::now();
        begin();
        let struck = Instant::now();
        self.load.wait_for(Class::New, LASTS, struck);
        let over = Instant::now();
        end();
        Fault { begun, struck, over }
    }

    /// Waits until some requests of each class that were begun from then on have their final answers.
    pub(crate) fn wait_for_some(&self, since: Instant) {
        for class in [Class::Open, Class::Regular, Class::New] {
            self.load.wait_for(class, 2 * SOME, since);
        }
    }

    /// Waits until all that was begun before now has its final answer.
    pub(crate) fn wait_for_answers(&self) {
        self.load.wait_for_answers(Instant::now());
    }

    /// Waits until this user gets this status from now on.
    pub(crate) fn wait_for_status(&self, user: &str, status: u16) {
        self.load.wait_for_status(user, status, Instant::now());
    }

    /// Lets the load go on for some more requests, and ends it. Returns its results before, during and after `fault`,
    /// and after `recovered`.
    pub(crate) fn finish(self, fault: Fault, recovered: Instant) -> Told {
        self.wait_for_some(recovered);
        let Self {
            load,
            server,
            database,
            setting,
            begun,
            scene,
            ..
        } = self;
        let outcomes = load.finish();
        let log = server.log();
        no_secrets(&log, &database);
        drop(server);
        drop(scene);
        Told {
            log,
            outcomes,
            setting,
            begun,
            fault,
            recovered,
        }
    }
}

/// The outcome of the load.
pub(crate) struct Told {
    /// The server's.
    pub(crate) log: String,
    pub(crate) outcomes: Vec<Outcome>,
    setting: Setting,
    begun: Instant,
    pub(crate) fault: Fault,
    pub(crate) recovered: Instant,
}

impl Told {
    /// Requests of a class that were under way between two moments.
    pub(crate) fn of(&self, class: Class, from: Instant, to: Instant) -> Vec<&Outcome> {
        let during = |o: &&Outcome| o.class == class && o.begun < to && o.ended >= from;
        self.outcomes.iter().filter(during).collect()
    }

    fn end(&self) -> Instant {
        self.recovered + Duration::from_secs(3600)
    }

    /// What must be so whatever happens to the database. `what` names that.
    pub(crate) fn is_undisturbed(&self, what: &str) {
        self.strangers_notice_nothing(what);
        self.class_succeeds(Class::Regular, self.begun, what);
        self.is_answered_in_time(what);
        self.class_succeeds(Class::New, self.recovered, what);
    }

    /// All of them succeed, and requests that need no look-up do not wait for it. Most of the new users'
    /// requests that have waited during the fault were overtaken by a stranger's that came later.
    fn strangers_notice_nothing(&self, what: &str) {
        self.class_succeeds(Class::Open, self.begun, what);
        for (name, from, to) in [
            ("before", self.begun, self.fault.begun),
            ("during", self.fault.begun, self.recovered),
            ("after", self.recovered, self.end()),
        ] {
            let of = self.of(Class::Open, from, to);
            let mut times: Vec<Duration> = of.iter().map(|o| o.took).collect();
            let [median, p99, worst] = [50, 99, 100].map(|share| percentile(&mut times, share));
            eprintln!("{what}: strangers {name}: median {median:?}, p99 {p99:?}, worst {worst:?}");
        }
        let new = self.of(Class::New, self.recovered, self.end());
        let served = new.iter().filter(|o| o.begun >= self.recovered);
        let mut times: Vec<Duration> = served.map(|o| o.took).collect();
        let [median, p99, worst] = [50, 99, 100].map(|share| percentile(&mut times, share));
        eprintln!("{what}: new users after: median {median:?}, p99 {p99:?}, worst {worst:?}");
        eprintln!(
            "{what}: fault of {:?}, struck after {:?}, new users succeed {:?} after its end",
            self.fault.over - self.fault.begun,
            self.fault.struck - self.fault.begun,
            self.recovered.saturating_duration_since(self.fault.over)
        );
        let (overtaken, waited) = self.overtaken();
        eprintln!("{what}: {overtaken} of {waited} that wait for a look-up are overtaken");
        // The share of a few says nothing.
        assert!(
            waited <= 10 || 2 * overtaken >= waited,
            "{what}: those who need no look-up wait for it: {overtaken} of {waited} that wait for one are overtaken"
        );
    }

    /// Of the new users' requests that have waited during the fault: how many were overtaken by a stranger's that came
    /// later, and how many there were.
    pub(crate) fn overtaken(&self) -> (usize, usize) {
        let strangers = self.of(Class::Open, self.fault.begun, self.end());
        let begun = self.all_begun();
        let mut waited = self.of(Class::New, self.fault.begun, self.fault.over);
        waited.retain(|o| o.took.saturating_sub(stood_still(&begun, o)) >= WAITED);
        let is_overtaken = |new: &&&Outcome| {
            let mut strangers = strangers.iter();
            strangers.any(|o| o.begun > new.begun && o.ended < new.ended)
        };
        (waited.iter().filter(is_overtaken).count(), waited.len())
    }

    /// When each request of the load was begun, the first one first.
    fn all_begun(&self) -> Vec<Instant> {
        let mut begun: Vec<Instant> = self.outcomes.iter().map(|o| o.begun).collect();
        begun.sort();
        begun
    }

    /// All of a class succeed from some moment on.
    pub(crate) fn class_succeeds(&self, class: Class, from: Instant, what: &str) {
        let of_class = self
            .outcomes
            .iter()
            .filter(|o| o.class == class && o.begun >= from);
        let of_class: Vec<&Outcome> = of_class.collect();
        assert!(of_class.len() > 20, "{what}: {} of {class:?}", of_class.len());
        let failed: Vec<String> = of_class
            .iter()
            .filter(|o| o.status != 200)
            .map(|o| self.describe(o))
            .collect();
        assert!(
            failed.is_empty(),
            "{what}: {} of {} {class:?} requests failed: {failed:#?}\nThe log's last lines on the database:\n{}",
            failed.len(),
            of_class.len(),
            self.log_on_database()
        );
    }

    /// The last lines of the log that are about the database, for the reader of a failure.
    fn log_on_database(&self) -> String {
        let is_of_it = |line: &&str| line.contains("store=") || line.contains("subscriber");
        let lines: Vec<&str> = self.log.lines().filter(is_of_it).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn describe(&self, o: &Outcome) -> String {
        let since = |at: Instant| match at.checked_duration_since(self.fault.begun) {
            Some(after) => format!("{after:?} after"),
            None => format!("{:?} before", self.fault.begun - at),
        };
        format!(
            "{} of {}: {} after {:?}, begun {} the fault",
            o.method,
            o.user,
            o.status,
            o.took,
            since(o.begun)
        )
    }

    /// New users get an answer, the one that is configured where it is no 200, and in time.
    pub(crate) fn is_answered_in_time(&self, what: &str) {
        let new = self.of(Class::New, self.begun, self.end());
        let refused: Vec<_> = new.iter().filter(|o| o.status != 200).collect();
        let limit = self.setting.deadline + MARGIN;
        for o in &refused {
            let at = self.describe(o);
            assert_eq!(o.status, self.setting.unavailable, "{what}: {at}");
            let seconds: Result<u32, _> = o.retry_after.parse();
            assert!(
                seconds.is_ok_and(|s| s > 0),
                "{what}: Retry-After: {}",
                o.retry_after
            );
            assert!(o.took <= limit, "{what}: {at}");
            assert!(
                o.ended >= self.fault.begun || !self.setting.filled,
                "{what}: before the fault: {at}"
            );
        }
        let mut times: Vec<Duration> = refused.iter().map(|o| o.took).collect();
        eprintln!(
            "{what}: {} of {} new users refused, after {:?} (median), {:?} (worst)",
            times.len(),
            new.len(),
            percentile(&mut times, 50),
            percentile(&mut times, 100)
        );
    }

    /// Asserts that hardly a new user was served from the time when the fault struck until its end.
    pub(crate) fn new_users_were_refused(&self, what: &str) {
        let fault = self.of(Class::New, self.fault.struck, self.fault.over);
        // Those that were refused because of the fault.
        let refused = fault
            .iter()
            .filter(|o| o.status == self.setting.unavailable)
            .count();
        assert!(
            refused * 2 > fault.len() && refused > 10,
            "{what}: {refused} of {} refused: was there a fault?",
            fault.len()
        );
    }

    /// All new users were served.
    pub(crate) fn new_users_succeed(&self, what: &str) {
        self.class_succeeds(Class::New, self.begun, what);
    }
}

/// The longest time while a request was under way in which the load began none: on a busy machine it may get no
/// processor, and so finds late what has come long ago. It begins 150 a second.
fn stood_still(begun: &[Instant], of: &Outcome) -> Duration {
    let meanwhile = begun
        .iter()
        .copied()
        .filter(|at| *at > of.begun && *at < of.ended);
    let moments: Vec<Instant> = std::iter::once(of.begun)
        .chain(meanwhile)
        .chain([of.ended])
        .collect();
    let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// Neither passwords nor what serves as one are in a log.
pub(crate) fn no_secrets(log: &str, database: &Database) {
    assert!(log.len() > 200, "a log: {log}");
    for secret in [MARK, database.password()] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "a password in the log");
    }
    let mut hashes = HashSet::new();
    for user in [regulars(), new_users(), vec!["first".to_owned()]].concat() {
        let full = format!("{user}@{DOMAIN}");
        for name in [user.clone(), full] {
            let text = format!("{name}:{DOMAIN}:{}", password(&user));
            hashes.extend([md5(&text), sha256(&text)]);
        }
    }
    let lower = log.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_hexdigit());
    for word in words.filter(|word| word.len() >= 32) {
        assert!(!hashes.contains(word), "an HA1 in the log: {word}");
    }
}
