//! Registrations by SIPp, and what a wrong password gets.

use conformance::{Client, Config, Message, Scene, Server, Sipp, Transport, over_udp_and_tcp, port};

over_udp_and_tcp!(
    register_refresh_query_unregister,
    register_with_digest,
    wrong_password_stays_refused,
    an_unknown_user_looks_like_a_wrong_password,
    registrations_outlive_a_kill,
);

fn phone<'a>(scene: &'a Scene, scenario: &'static str, transport: Transport) -> Sipp<'a> {
    Sipp::client(scene, scenario, transport, port::CALLEE, scene.at(port::SERVER))
        .set("from", "sip:bob@example.com")
        .set("user", "bob")
        .set("password", "builder")
}

fn contact(scene: &Scene, user: &str, expires: u32) -> String {
    format!(
        "Contact: <sip:{user}@{}>\nExpires: {expires}",
        scene.at(port::CALLEE)
    )
}

fn succeeds(sipp: Sipp<'_>) -> bool {
    let Some(running) = sipp.start() else { return false };
    running.succeed(1);
    true
}

fn register_refresh_query_unregister(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &Config::new());
    let register = |cseq: &str| phone(&scene, "register", transport).set("cseq", cseq);
    let first = register("1")
        .set("contact", contact(&scene, "bob", 600))
        .expect_header("Contact", "sip:bob@.*expires=(600|59[0-9])");
    if !succeeds(first) {
        return;
    }
    let refresh = register("2")
        .set("contact", contact(&scene, "bob", 900))
        .expect_header("Contact", "sip:bob@.*expires=(900|89[0-9])");
    succeeds(refresh);
    // Less the time until it is asked for.
    succeeds(register("3").expect_header("Contact", "sip:bob@.*expires=(900|8[0-9][0-9])"));
    let second = register("4")
        .set("contact", contact(&scene, "desk", 300))
        .expect_header("Contact", "sip:(bob|desk)@");
    succeeds(second);
    succeeds(
        register("5")
            .set("contact", contact(&scene, "desk", 0))
            .expect_header("Contact", "sip:bob@"),
    );
    succeeds(
        register("6")
            .set("contact", "Contact: *\nExpires: 0")
            .refuse_header("Contact", "sip:"),
    );
    succeeds(register("7").refuse_header("Contact", "sip:"));
}

fn register_with_digest(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &Config::new().auth(&["REGISTER"]).user("bob", "builder"));
    let register = phone(&scene, "register_auth", transport).set("contact", contact(&scene, "bob", 600));
    if succeeds(register.expect_header("Contact", "sip:bob@")) {
        succeeds(
            phone(&scene, "register_auth", transport)
                .set("cseq", "3")
                .set("cseq_again", "4")
                .expect_header("Contact", "sip:bob@"),
        );
    }
}

fn wrong_password_stays_refused(transport: Transport) {
    let scene = Scene::new();
    let server = Server::start(&scene, &Config::new().auth(&["REGISTER"]).user("bob", "builder"));
    let wrong = phone(&scene, "register_refused", transport).set("password", "wrecker");
    if succeeds(wrong.set("contact", contact(&scene, "bob", 600))) {
        succeeds(phone(&scene, "register_auth", transport).refuse_header("Contact", "sip:"));
        let log = server.log();
        assert!(
            !log.contains("wrecker") && !log.contains("builder"),
            "a password in the log"
        );
    }
}

/// The response to a REGISTER of `user` with a made-up digest response.
fn answer_to_guess(client: &mut Client, scene: &Scene, user: &str) -> Message {
    let register = |cseq: u32, more: &str| {
        format!(
            "REGISTER sip:example.com SIP/2.0\nMax-Forwards: 70\nFrom: <sip:{user}@example.com>;tag=t{user}\n\
             To: <sip:{user}@example.com>\nCall-ID: guess-{user}\nCSeq: {cseq} REGISTER\n\
             Contact: <sip:{user}@{}>\n{more}",
            scene.at(port::CALLEE)
        )
    };
    client.send(&register(1, "Expires: 600\n"), &format!("first{user}"));
    let challenge = client.final_response();
    assert_eq!(challenge.status(), 401, "{challenge:?}");
    let credentials = format!(
        "Expires: 600\nAuthorization: Digest username=\"{user}\", realm=\"{}\", nonce=\"{}\", uri=\"sip:example.com\", \
         response=\"0123456789abcdef0123456789abcdef\", algorithm=MD5, qop=auth, nc=00000001, cnonce=\"c0ffee\"\n",
        challenge.challenge("realm"),
        challenge.challenge("nonce"),
    );
    client.send(&register(2, &credentials), &format!("again{user}"));
    client.final_response()
}

/// Same status line, same headers in the same order, same shape of their values.
fn shape(message: &Message, user: &str) -> Vec<String> {
    let changing = ["via", "to", "date"];
    let headers = message.headers.iter().map(|(name, value)| {
        let value = value
            .replace(message.challenge("nonce"), "NONCE")
            .replace(user, "USER");
        if changing.contains(&name.as_str()) {
            format!("{name}: {}", value.len())
        } else {
            format!("{name}: {value}")
        }
    });
    std::iter::once(message.first_line.clone())
        .chain(headers)
        .collect()
}

fn an_unknown_user_looks_like_a_wrong_password(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(
        &scene,
        &Config::new().auth(&["REGISTER"]).user("known", "builder"),
    );
    let mut client = Client::new(&scene, transport, port::CALLER, scene.at(port::SERVER));
    let known = answer_to_guess(&mut client, &scene, "known");
    let other = answer_to_guess(&mut client, &scene, "ghost");
    assert!([401, 403].contains(&known.status()), "{known:?}");
    assert_eq!(shape(&known, "known"), shape(&other, "ghost"));
}

/// `durability = "commit"`: what was answered is on disk, whatever happens then.
fn registrations_outlive_a_kill(transport: Transport) {
    let scene = Scene::new();
    let server = Server::start(&scene, &Config::new());
    let register = phone(&scene, "register", transport).set("contact", contact(&scene, "bob", 600));
    if !succeeds(register.expect_header("Contact", "sip:bob@")) {
        return;
    }
    server.kill();
    let _server = Server::start_again(&scene);
    succeeds(
        phone(&scene, "register", transport)
            .set("cseq", "2")
            .expect_header("Contact", "sip:bob@"),
    );
}
