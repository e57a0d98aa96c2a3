//! Tables as others make them, and rows that are broken.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance::digest::{self, md5};
use conformance::{Client, Config, DOMAIN, Message, Scene, Server, Transport, in_time};
use test_databases::{Database, MariaDb, PostgreSql};

use crate::credentials::stage::{CONNECTIONS, config, no_secrets, password};

/// Where the package `kamailio-mysql-modules` has them.
const SCRIPTS: [&str; 2] = [
    "/usr/share/kamailio/mysql/standard-create.sql",
    "/usr/share/kamailio/mysql/auth_db-create.sql",
];
/// The same table, where the package is not installed.
const TABLE: &str = "CREATE TABLE subscriber (id INT(10) UNSIGNED AUTO_INCREMENT PRIMARY KEY NOT NULL, \
     username VARCHAR(64) DEFAULT '' NOT NULL, domain VARCHAR(64) DEFAULT '' NOT NULL, \
     password VARCHAR(64) DEFAULT '' NOT NULL, ha1 VARCHAR(128) DEFAULT '' NOT NULL, \
     ha1b VARCHAR(128) DEFAULT '' NOT NULL, CONSTRAINT account_idx UNIQUE (username, domain));";

/// A table as Kamailio's script makes it.
fn kamailio_table(database: &Database) {
    let scripts = SCRIPTS.map(|path| std::fs::read_to_string(path).ok());
    match scripts {
        [Some(standard), Some(auth)] => drop(database.sql(&(standard + &auth))),
        [_, _] => drop(database.sql(TABLE)),
    }
}

/// Each caller has a port of its own.
fn client(scene: &Scene) -> Client {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let port = 10_000 + u16::try_from(number % 20_000).expect("below it");
    Client::new(scene, Transport::Udp, port, scene.at(conformance::port::SERVER))
}

fn register(client: &mut Client, user: &str, cseq: u32, credentials: &str) {
    let text = format!(
        "REGISTER sip:{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:{user}@{DOMAIN}>;tag=t\n\
         To: <sip:{user}@{DOMAIN}>\nCall-ID: register-{user}-{host}\nCSeq: {cseq} REGISTER\n\
         Contact: <sip:{user}@{host}>\nExpires: 60\n{credentials}",
        host = client.host()
    );
    client.send(&text, &format!("{user}-{cseq}"));
}

/// A registration that has been challenged; the line that answers the challenge with this name.
fn challenged(scene: &Scene, user: &str, username: &str, password: &str) -> (Client, String) {
    let mut client = client(scene);
    register(&mut client, user, 1, "");
    let challenge = client.final_response();
    assert_eq!(challenge.status(), 401, "{challenge:?}");
    let uri = format!("sip:{DOMAIN}");
    let credentials = digest::credentials("REGISTER", &uri, &challenge, username, password);
    (client, format!("Authorization: {credentials}"))
}

/// The final answer to a registration with credentials for this name.
fn registered(scene: &Scene, user: &str, username: &str, password: &str) -> Message {
    let (mut client, credentials) = challenged(scene, user, username, password);
    register(&mut client, user, 2, &credentials);
    client.final_response()
}

/// Starts a server, and waits for its connections to the database: opening them may take longer than the
/// deadline of a look-up where that database serves many tests at once.
fn start(scene: &Scene, config: &Config, connections: f64) -> Server {
    let server = Server::start(scene, config);
    server.wait_for_metric("trapezoid_credential_connections", "", |n| n >= connections);
    server
}

fn start_with(scene: &Scene, database: &Database, more: &str) -> Server {
    let subscribers = format!("url = \"{}\"\n{more}", database.url());
    start(
        scene,
        &config(scene, &database.url(), "").subscribers(&subscribers),
        CONNECTIONS,
    )
}

#[test]
fn kamailios_table_with_hashes() {
    let database = MariaDb::shared().fresh_database();
    kamailio_table(&database);
    let word = password("alice");
    let ha1 = md5(&format!("alice:{DOMAIN}:{word}"));
    let ha1b = md5(&format!("alice@{DOMAIN}:{DOMAIN}:{word}"));
    database.sql(&format!(
        "INSERT INTO subscriber (username, domain, ha1, ha1b) VALUES ('alice', '{DOMAIN}', '{ha1}', '{ha1b}')"
    ));
    let scene = Scene::new();
    let server = start_with(&scene, &database, "");
    assert_eq!(registered(&scene, "alice", "alice", &word).status(), 200);
    let full = format!("alice@{DOMAIN}");
    assert_eq!(registered(&scene, "alice", &full, &word).status(), 200);
    assert_eq!(registered(&scene, "alice", &full, "wrong").status(), 401);
    assert_eq!(registered(&scene, "alice", "alice", "wrong").status(), 401);
    // Commands keep to the columns that are there.
    Server::add_user(&scene, "bob", &password("bob"));
    let full = format!("bob@{DOMAIN}");
    assert_eq!(registered(&scene, "bob", &full, &password("bob")).status(), 200);
    assert_eq!(
        registered(&scene, "alice", &full, &password("bob")).status(),
        403,
        "bob is not alice"
    );
    no_secrets(&server.log(), &database);
    for hash in [ha1, ha1b] {
        assert!(!server.log().contains(&hash), "an HA1 in the log");
    }
}

#[test]
fn kamailios_table_with_plain_passwords() {
    let database = MariaDb::shared().fresh_database();
    kamailio_table(&database);
    database.sql(&format!(
        "INSERT INTO subscriber (username, domain, password) VALUES ('alice', '{DOMAIN}', '{}'), ('empty', '{DOMAIN}', '')",
        password("alice")
    ));
    let scene = Scene::new();
    let server = start_with(&scene, &database, "calculate_ha1 = true");
    let full = format!("alice@{DOMAIN}");
    for name in ["alice", &full] {
        assert_eq!(
            registered(&scene, "alice", name, &password("alice")).status(),
            200
        );
        assert_eq!(registered(&scene, "alice", name, "wrong").status(), 401);
    }
    assert_eq!(
        registered(&scene, "empty", "empty", "").status(),
        401,
        "an empty password is none"
    );
    no_secrets(&server.log(), &database);
}

fn sha_256_is_looked_up(database: &Database) {
    let scene = Scene::new();
    let mut config = config(&scene, &database.url(), "").user("alice", &password("alice"));
    config = config.auth_keys("algorithms = [\"SHA-256\"]");
    let server = start(&scene, &config, CONNECTIONS);
    let mut client = client(&scene);
    register(&mut client, "alice", 1, "");
    let challenge = client.final_response();
    assert_eq!(challenge.challenge_token("algorithm"), "SHA-256");
    assert_eq!(
        registered(&scene, "alice", "alice", &password("alice")).status(),
        200
    );
    assert_eq!(registered(&scene, "alice", "alice", "wrong").status(), 401);
    no_secrets(&server.log(), database);
}

#[test]
fn sha_256_from_mariadb() {
    sha_256_is_looked_up(&MariaDb::shared().fresh_database());
}

#[test]
fn sha_256_from_postgresql() {
    sha_256_is_looked_up(&PostgreSql::shared().fresh_database());
}

/// An answer without what differs between requests.
fn shape(answer: &Message) -> (String, Vec<(String, String)>) {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| !["via", "from", "to", "call-id"].contains(&name.as_str()));
    for (name, value) in &mut headers {
        if name == "www-authenticate" {
            *value = value.replace(answer.challenge("nonce"), "…");
        }
    }
    (answer.first_line.clone(), headers)
}

/// One row of a batch holds no hash: its user gets the response that a stranger gets, and no other user
/// notices.
fn a_broken_row_concerns_nobody_else(fresh_database: impl Fn() -> Database) {
    const GOOD: usize = 6;
    let users: Vec<String> = (0..GOOD).map(|n| format!("good{n}")).collect();
    let (scene, server, database, answers) = in_time(|| one_batch(fresh_database(), &users));
    let mut refused = Vec::new();
    for (user, answer) in &answers {
        if users.contains(user) {
            assert_eq!(answer.status(), 200, "{user}: {answer:?}");
        } else {
            assert_eq!(answer.status(), 401, "{user}: {answer:?}");
            refused.push(shape(answer));
        }
    }
    assert_eq!(
        server.metric("trapezoid_credential_batches_total", "size=\"8\""),
        1.0,
        "one batch"
    );
    assert_eq!(server.metric("trapezoid_credential_broken_hashes", ""), 1.0);
    assert_eq!(refused[0], refused[1], "nobody can tell who exists");
    let wrong = registered(&scene, "good0", "good0", "wrong");
    assert_eq!(shape(&wrong), refused[0], "nor by a wrong password");
    no_secrets(&server.log(), &database);
    assert!(
        !server.log().contains("not a hash"),
        "what the row holds is not told"
    );
}

/// The users that registered, and the responses.
type Answers = Vec<(String, Message)>;

/// The responses to registrations of these users, of `broken` (its row is), and of an unknown one; `None` if
/// not all eight came before the first had waited long enough to go without the others.
fn one_batch(database: Database, users: &[String]) -> Option<(Scene, Server, Database, Answers)> {
    const WAIT: Duration = Duration::from_millis(900);
    let scene = Scene::new();
    let keys = format!(
        "connections = 1\nmode = \"fixed\"\nmax_batch = 8\nmax_wait_ms = {}",
        WAIT.as_millis()
    );
    let mut config = config(&scene, &database.url(), &keys);
    for user in users.iter().map(String::as_str).chain(["broken"]) {
        config = config.user(user, &password(user));
    }
    let server = start(&scene, &config, 1.0);
    database.sql("UPDATE subscriber SET ha1 = concat('not a hash', ha1) WHERE username = 'broken'");
    let mut clients: Vec<(String, (Client, String))> = users
        .iter()
        .map(String::as_str)
        .chain(["broken", "unknown"])
        .map(|user| (user.to_owned(), challenged(&scene, user, user, &password(user))))
        .collect();
    let begun = Instant::now();
    for (user, (client, credentials)) in &mut clients {
        register(client, user, 2, credentials);
    }
    let answers: Answers = clients
        .into_iter()
        .map(|(user, (mut client, _))| (user, client.final_response()))
        .collect();
    (begun.elapsed() < WAIT).then_some((scene, server, database, answers))
}

#[test]
fn a_broken_row_of_mariadb() {
    a_broken_row_concerns_nobody_else(|| MariaDb::shared().fresh_database());
}

#[test]
fn a_broken_row_of_postgresql() {
    a_broken_row_concerns_nobody_else(|| PostgreSql::shared().fresh_database());
}
