//! 302: made here, followed here, passed on.

use std::time::Duration;

use conformance::{Client, Config, Message, Part, Phone, Scene, Server, Transport, over_udp_and_tcp, port};

over_udp_and_tcp!(
    to_the_registered_contacts,
    to_a_uri,
    without_state,
    a_redirect_to_a_user_without_contacts_is_480,
    a_callee_sends_on_to_another,
    the_contact_of_a_302_from_a_next_hop_is_called,
    the_contact_of_a_302_from_a_group_member_is_called,
    contacts_are_followed_by_their_q,
    without_recursion_the_caller_is_told,
);

const NOW: Duration = Duration::ZERO;

fn call(scene: &Scene, transport: Transport) -> Vec<Message> {
    Client::new(scene, transport, port::CALLER, scene.at(port::SERVER)).call("bob", "call")
}

fn status(answers: &[Message]) -> u16 {
    answers.last().map_or(0, Message::status)
}

fn rule(keys: &str) -> Config {
    Config::new().route(&format!("when = {{ method = [\"INVITE\"] }}\n{keys}"))
}

fn phone(scene: &Scene, transport: Transport, n: u16, part: Part) -> Phone {
    Phone::start(scene, transport, port::CALLEE + n, part)
}

fn to_the_registered_contacts(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &rule("do = { redirect = \"location\" }"));
    let phones = [0, 1].map(|n| phone(&scene, transport, n, Part::Answer(NOW)));
    phones[0].register("bob", "0.25");
    phones[1].register("bob", "1");
    let answers = call(&scene, transport);
    assert_eq!(status(&answers), 302);
    let contacts = answers.last().expect("an answer").all("contact");
    assert_eq!(contacts.len(), 2, "{contacts:?}");
    let of = |n: usize| {
        let uri = format!("<{}>", phones[n].uri("bob"));
        let found = contacts.iter().find(|contact| contact.starts_with(&uri));
        *found.unwrap_or_else(|| panic!("{uri} in {contacts:?}"))
    };
    assert!(of(0).contains(";q=0.25"), "{contacts:?}");
    assert!(of(1).contains(";q=1") || !of(1).contains(";q="), "{contacts:?}");
    assert_eq!(phones[0].count("INVITE") + phones[1].count("INVITE"), 0);
}

fn to_a_uri(transport: Transport) {
    for (uri, contact) in [
        (
            "sip:gw.example.net;transport=tls",
            "<sip:bob@gw.example.net;transport=tls>",
        ),
        ("sip:desk@gw.example.net", "<sip:desk@gw.example.net>"),
    ] {
        let scene = Scene::new();
        let _server = Server::start(&scene, &rule(&format!("do = {{ redirect = \"{uri}\" }}")));
        let answers = call(&scene, transport);
        assert_eq!(status(&answers), 302);
        assert_eq!(answers.last().expect("an answer").all("contact"), [contact]);
    }
}

fn without_state(transport: Transport) {
    let scene = Scene::new();
    let rule = rule("do = { redirect = \"sip:gw.example.net\" }").stateless();
    let server = Server::start(&scene, &rule);
    let mut caller = Client::new(&scene, transport, port::CALLER, scene.at(port::SERVER));
    assert_eq!(status(&caller.call("bob", "one")), 302);
    assert_eq!(status(&caller.call("bob", "two")), 302);
    // Both ACKs end here: our To tag shows that they are for a response made here.
    server.wait_for_metric("trapezoid_requests_received_total", "method=\"ACK\"", |n| {
        n >= 2.0
    });
    assert_eq!(server.metric("trapezoid_requests_relayed_total", ""), 0.0);
    let begun = server.metric("trapezoid_transactions_total", "side=\"server\"");
    assert_eq!(begun, 0.0);
}

fn a_redirect_to_a_user_without_contacts_is_480(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &rule("do = { redirect = \"location\" }"));
    assert_eq!(status(&call(&scene, transport)), 480);
}

fn sends_on_to(phones: &[(&Phone, &str)]) -> Part {
    let contacts = phones
        .iter()
        .map(|(phone, parameters)| format!("<{}>{parameters}", phone.uri("carol")));
    Part::Redirect(contacts.collect())
}

/// The caller saw nothing but the call's success, and its INVITE went to `other` as that was named.
fn expect_followed(answers: &[Message], first: &Phone, other: &Phone) {
    assert_eq!(status(answers), 200, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|answer| !(300..400).contains(&answer.status())),
        "{answers:?}"
    );
    first.wait_for("ACK");
    assert_eq!((first.count("INVITE"), other.count("INVITE")), (1, 1));
    let line = &other.requests("INVITE")[0].message.first_line;
    assert_eq!(*line, format!("INVITE {} SIP/2.0", other.uri("carol")));
}

fn a_callee_sends_on_to_another(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &rule("do = { relay = \"location\", recurse = true }"));
    let other = phone(&scene, transport, 1, Part::Answer(NOW));
    let first = phone(&scene, transport, 0, sends_on_to(&[(&other, "")]));
    first.register("bob", "1");
    expect_followed(&call(&scene, transport), &first, &other);
}

fn the_contact_of_a_302_from_a_next_hop_is_called(transport: Transport) {
    let scene = Scene::new();
    let other = phone(&scene, transport, 1, Part::Answer(NOW));
    let first = phone(&scene, transport, 0, sends_on_to(&[(&other, "")]));
    let rule = rule(&format!(
        "do = {{ relay = \"{}\", recurse = true }}",
        first.uri("")
    ));
    let _server = Server::start(&scene, &rule);
    expect_followed(&call(&scene, transport), &first, &other);
}

fn the_contact_of_a_302_from_a_group_member_is_called(transport: Transport) {
    let scene = Scene::new();
    let other = phone(&scene, transport, 2, Part::Answer(NOW));
    let members = [0, 1].map(|n| phone(&scene, transport, n, sends_on_to(&[(&other, "")])));
    let list = format!(
        "name = \"g\"\nprobe_s = 0\nalgorithm = \"priority\"\nreply_timeout_ms = 32000\n\
         members = [ {{ uri = \"{}\" }}, {{ uri = \"{}\", priority = 1 }} ]",
        members[0].uri(""),
        members[1].uri("")
    );
    let rule = rule("do = { relay = \"group:g\", recurse = true }").table("[[group]]", &list);
    let _server = Server::start(&scene, &rule);
    expect_followed(&call(&scene, transport), &members[0], &other);
    assert_eq!(members[1].count("INVITE"), 0, "a member took it");
}

fn contacts_are_followed_by_their_q(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &rule("do = { relay = \"location\", recurse = true }"));
    let last = phone(&scene, transport, 1, Part::Answer(NOW));
    let busy = phone(
        &scene,
        transport,
        2,
        Part::Refuse(486, Duration::from_millis(200)),
    );
    let first = phone(
        &scene,
        transport,
        0,
        sends_on_to(&[(&last, ";q=0.1"), (&busy, ";q=0.8")]),
    );
    first.register("bob", "1");
    assert_eq!(status(&call(&scene, transport)), 200);
    let waited = last.wait_for("INVITE").at - busy.wait_for("INVITE").at;
    assert!(waited >= Duration::from_millis(190), "{waited:?}");
    assert_eq!((last.count("INVITE"), busy.count("INVITE")), (1, 1));
}

fn without_recursion_the_caller_is_told(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &rule("do = { relay = \"location\" }"));
    let other = phone(&scene, transport, 1, Part::Answer(NOW));
    let first = phone(&scene, transport, 0, sends_on_to(&[(&other, ";q=0.5")]));
    first.register("bob", "1");
    let answers = call(&scene, transport);
    assert_eq!(status(&answers), 302);
    let contact = format!("<{}>;q=0.5", other.uri("carol"));
    assert_eq!(answers.last().expect("an answer").all("contact"), [contact]);
    assert_eq!(other.count("INVITE"), 0);
}
