use super::*;
use crate::config::Durability;
use crate::id::ListenerId;
use crate::transport::Transport;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use proptest::prelude::*;
use sip_message::HeaderIndex;

const POLICY: RegistrarPolicy = RegistrarPolicy {
    min_expires_s: 60,
    default_expires_s: 3600,
    max_expires_s: 7200,
    durability: Durability::Memory,
};
const MAX: usize = 3;
const T0: u64 = 1_800_000_000;

fn flow() -> Flow {
    Flow {
        transport: Transport::Udp,
        listener: ListenerId(1),
        remote: "192.0.2.9:5060".parse().unwrap(),
        conn: None,
        proof: crate::transport::Proof::None,
    }
}

/// The outcome of a REGISTER: the effect and the 200's lines, or the status and the refusal's lines.
#[derive(Debug, PartialEq, Eq)]
enum Did {
    Ok(Effect, String),
    Refused(u16, String),
}

/// Header lines of a phone that does outbound, and whose REGISTER comes without a proxy.
const OUTBOUND: &str = "Supported: outbound|Via: SIP/2.0/UDP phone;branch=z9hG4bKp";

/// Sends a REGISTER with these header lines (`|` ends a line), `at` seconds after T0.
fn register(record: &mut AorRecord, at: u64, call_id: &str, cseq: u32, lines: &str) -> Did {
    apply_up_to(record, at, call_id, cseq, lines, MAX)
}

/// Registers as [`register`] does, with at most `max` contacts.
fn apply_up_to(record: &mut AorRecord, at: u64, call_id: &str, cseq: u32, lines: &str, max: usize) -> Did {
    with_lost(record, at, call_id, cseq, lines, max, &mut |_| {})
}

/// Registers as [`apply_up_to`] does. Replaced and removed bindings go to `lost`.
fn with_lost(
    record: &mut AorRecord,
    at: u64,
    call_id: &str,
    cseq: u32,
    lines: &str,
    max: usize,
    lost: &mut dyn FnMut(Binding),
) -> Did {
    let lines: String = lines
        .split('|')
        .filter(|l| !l.is_empty())
        .map(|l| format!("{l}\r\n"))
        .collect();
    let text = format!(
        "REGISTER sip:example.com SIP/2.0\r\nTo: <sip:alice@example.com>\r\nCall-ID: {call_id}\r\n\
         CSeq: {cseq} REGISTER\r\nUser-Agent: Phone 1\r\n{lines}\r\n"
    );
    let mut index = HeaderIndex::new();
    let message = sip_message::parse(text.as_bytes(), &mut index, 256).unwrap();
    assert_eq!(message.defect(), None);
    let now = Now {
        unix_ms: (T0 + at) * 1000,
        ..Now::default()
    };
    let mut out = vec![];
    let before = record.clone();
    let result = Registration::read(&message, flow(), &POLICY, max, now)
        .and_then(|r| r.apply(record, max, lost).map(|effect| (r, effect)));
    match result {
        Ok((registration, effect)) => {
            registration.write_headers(record, &mut out);
            assert_eq!(effect == Effect::Changed, record.version > before.version);
            assert!(effect == Effect::Changed || record.bindings == before.bindings);
            assert!(record.bindings.len() <= max);
            let text = String::from_utf8(out).unwrap();
            let (rest, date) = text.split_once("Supported: path\r\nDate: ").unwrap();
            assert!(date.ends_with(" GMT\r\n"));
            Did::Ok(effect, rest.replace("\r\n", "|"))
        }
        Err(rejection) => {
            assert_eq!(*record, before, "a refused REGISTER changes nothing");
            rejection.write_headers(&message, &mut out);
            Did::Refused(
                rejection.status(),
                String::from_utf8(out).unwrap().replace("\r\n", "|"),
            )
        }
    }
}

fn changed(lines: &str) -> Did {
    Did::Ok(Effect::Changed, lines.into())
}

fn repeated(lines: &str) -> Did {
    Did::Ok(Effect::Repeated, lines.into())
}

fn refused(status: u16) -> Did {
    Did::Refused(status, String::new())
}

/// RFC 3261 §10.2.1.1, §10.3 step 7: the source of the expiration, and its bounds.
#[test]
fn expirations_stay_within_their_bounds() {
    for (lines, expected) in [
        ("Contact: <sip:a@h>", Ok(3600)),
        ("Expires: 600|Contact: <sip:a@h>", Ok(600)),
        ("Expires: 600|Contact: <sip:a@h>;expires=700", Ok(700)),
        ("Contact: sip:a@h;expires=60", Ok(60)),
        ("Contact: <sip:a@h>;expires=59", Err("Min-Expires: 60|")),
        ("Expires: 1|Contact: <sip:a@h>", Err("Min-Expires: 60|")),
        ("Contact: <sip:a@h>;expires=7201", Ok(7200)),
        ("Contact: <sip:a@h>;expires=4294967296", Ok(7200)),
        ("Contact: <sip:a@h>;expires=soon", Ok(3600)),
        ("Expires: soon|Contact: <sip:a@h>", Ok(3600)),
        // The 0 is for the other contact only.
        ("Expires: 0|Contact: <sip:a@h>;expires=100", Ok(100)),
    ] {
        let did = register(&mut AorRecord::default(), 0, "c", 1, lines);
        match expected {
            Ok(s) => assert_eq!(
                did,
                changed(&format!("Contact: <sip:a@h>;expires={s}|")),
                "{lines}"
            ),
            Err(min) => assert_eq!(did, Did::Refused(423, min.into()), "{lines}"),
        }
    }
}

/// §10.3 step 7: an hour is never too brief, whatever the policy.
#[test]
fn an_hour_is_never_too_brief() {
    let text =
        "REGISTER sip:h SIP/2.0\r\nCall-ID: c\r\nCSeq: 1 REGISTER\r\nContact: <sip:a@h>;expires=3600\r\n\r\n";
    let policy = RegistrarPolicy {
        min_expires_s: 5000,
        ..POLICY
    };
    let mut index = HeaderIndex::new();
    let message = sip_message::parse(text.as_bytes(), &mut index, 9).unwrap();
    assert!(Registration::read(&message, flow(), &policy, MAX, Now::default()).is_ok());
}

/// A stored binding, with all its fields.
#[test]
fn a_binding_keeps_all_of_its_registration() {
    let mut record = AorRecord::default();
    let lines = "Contact: \"A\" <sip:a@192.0.2.1:5062;ob>;q=0.25;reg-id=2;+sip.instance=\"<urn:uuid:1>\"|\
        Path: <sip:p1.example.com;lr>,|  <sip:p2.example.com;lr>|Path: <sip:p3;lr>";
    let lines = lines.replace(",|  ", ",\r\n  ");
    let did = register(&mut record, 0, "call@h", 77, &lines);
    let contact =
        "Contact: <sip:a@192.0.2.1:5062;ob>;q=0.250;expires=3600;+sip.instance=\"<urn:uuid:1>\";reg-id=2|";
    assert_eq!(did, changed(contact));
    let expected = crate::location::Binding {
        contact: b"sip:a@192.0.2.1:5062;ob".as_slice().into(),
        received: flow(),
        path: b"<sip:p1.example.com;lr>, <sip:p2.example.com;lr>, <sip:p3;lr>"
            .as_slice()
            .into(),
        instance: b"<urn:uuid:1>".as_slice().into(),
        reg_id: 2,
        call_id: b"call@h".as_slice().into(),
        cseq: 77,
        q_milli: 250,
        expires_unix_s: T0 + 3600,
        user_agent: b"Phone 1".as_slice().into(),
        updated: T0 * 1000,
    };
    assert_eq!(
        record,
        AorRecord {
            bindings: vec![expected],
            version: T0 * 1000,
            ..AorRecord::default()
        }
    );
}

/// §10.2.3: a REGISTER without Contact is a query; §10.3 step 8: all bindings, the seconds that they have
/// left, by q.
#[test]
fn query_lists_the_bindings() {
    let mut record = AorRecord::default();
    register(
        &mut record,
        0,
        "c",
        1,
        "Contact: <sip:a@h>;expires=100|Contact: <sip:b@h>;q=0.5, <sip:c@h>;q=0.7",
    );
    assert_eq!(
        register(&mut record, 40, "other", 1, ""),
        Did::Ok(
            Effect::Nothing,
            "Contact: <sip:a@h>;expires=60|Contact: <sip:c@h>;q=0.700;expires=3560|\
             Contact: <sip:b@h>;q=0.500;expires=3560|"
                .into()
        )
    );
    // Ended bindings are not listed.
    let got = register(&mut record, 100, "other", 1, "");
    let Did::Ok(Effect::Nothing, text) = got else {
        panic!("{got:?}")
    };
    assert!(!text.contains("sip:a@h"));
}

/// §10.2.2, §10.3 step 6.
#[test]
fn star_removes_all() {
    let mut record = AorRecord::default();
    register(&mut record, 0, "c", 5, "Contact: <sip:a@h>, <sip:b@h>");
    for (lines, cseq) in [
        ("Contact: *", 6),
        ("Contact: *|Expires: 1", 6),
        ("Contact: *|Expires: x", 6),
        ("Contact: *, <sip:a@h>|Expires: 0", 6),
        ("Contact: *|Contact: *|Expires: 0", 6),
        ("Contact: *;expires=0", 6),
    ] {
        assert_eq!(
            register(&mut record, 1, "c", cseq, lines),
            refused(400),
            "{lines}"
        );
    }
    for cseq in [4, 5] {
        assert_eq!(
            register(&mut record, 1, "c", cseq, "Contact: *|Expires: 0"),
            refused(500)
        );
    }
    assert_eq!(
        register(&mut record, 1, "c", 6, "Contact: *|Expires: 0"),
        changed("")
    );
    assert!(record.bindings.is_empty());
    assert_eq!(
        register(&mut record, 1, "c", 6, "Contact: *|Expires: 0"),
        repeated("")
    );
    // With another Call-ID no order is known, and the request counts.
    register(&mut record, 2, "c", 7, "Contact: <sip:a@h>");
    assert_eq!(
        register(&mut record, 3, "d", 1, "Contact: *|Expires: 0"),
        changed("")
    );
}

/// §10.3 step 7: Call-ID and CSeq.
#[test]
fn an_older_cseq_is_refused() {
    let mut record = AorRecord::default();
    register(&mut record, 0, "c", 5, "Contact: <sip:a@h>");
    let a = |s: u64| format!("Contact: <sip:a@h>;expires={s}|");
    assert_eq!(
        register(&mut record, 10, "c", 4, "Contact: <sip:a@h>"),
        refused(500)
    );
    assert_eq!(
        register(&mut record, 10, "c", 4, "Contact: <sip:a@h>;expires=0"),
        refused(500)
    );
    // A retransmission changes nothing and is no error.
    assert_eq!(
        register(&mut record, 10, "c", 5, "Contact: <sip:a@h>"),
        repeated(&a(3590))
    );
    // The same number with another Contact or expiration is no retransmission.
    assert_eq!(
        register(&mut record, 10, "c", 5, "Contact: <sip:a@h>;expires=0"),
        refused(500)
    );
    assert_eq!(
        register(&mut record, 10, "c", 5, "Contact: <sip:a@h;x=1>"),
        refused(500)
    );
    assert_eq!(
        register(&mut record, 10, "c", 6, "Contact: <sip:a@h>"),
        changed(&a(3600))
    );
    assert_eq!(
        register(&mut record, 10, "d", 1, "Contact: <sip:a@h>"),
        changed(&a(3600))
    );
    assert_eq!(
        register(&mut record, 10, "d", 2, "Contact: <sip:a@h>;expires=0"),
        changed("")
    );
    assert_eq!(
        register(&mut record, 10, "d", 2, "Contact: <sip:a@h>;expires=0"),
        repeated("")
    );
    // A late copy of a request from before the removal does not undo it. A REGISTER is retransmitted for 32 s
    // (§17.1.2.2), and may be on its way as long.
    for late in [10, 10 + 32] {
        assert_eq!(
            register(&mut record, late, "d", 1, "Contact: <sip:a@h>"),
            refused(500)
        );
    }
    // Another phone's REGISTER, and a later one of the same phone, are no copies.
    assert_eq!(
        register(&mut record, 11, "e", 1, "Contact: <sip:a@h>"),
        changed(&a(3600))
    );
    assert_eq!(
        register(&mut record, 12, "d", 3, "Contact: <sip:a@h>"),
        changed(&a(3600))
    );
    // An ended binding does not order requests.
    assert_eq!(
        register(&mut record, 9999, "d", 1, "Contact: <sip:a@h>"),
        changed(&a(3600))
    );
}

/// The registration was refused, say. It is refused again if it comes after the REGISTER that was to remove
/// it. A copy of that REGISTER does not make the removal later.
#[test]
fn a_removal_of_what_is_not_there_is_a_removal_too() {
    let mut record = AorRecord::default();
    let removal = "Contact: <sip:a@h>;expires=0, <sip:b@h>;expires=0";
    for at in [0, 36] {
        assert_eq!(register(&mut record, at, "c", 5, removal), repeated(""));
    }
    assert_eq!(record.recent.removed_bindings(), 2);
    for contact in ["Contact: <sip:b@h>", "Contact: <sip:a@h>"] {
        assert_eq!(register(&mut record, 36, "c", 4, contact), refused(500));
    }
    let bound = changed("Contact: <sip:a@h>;expires=3600|");
    assert_eq!(register(&mut record, 37, "c", 4, "Contact: <sip:a@h>"), bound);
    // A later REGISTER removes the binding, and is the one that counts.
    assert_eq!(register(&mut record, 38, "c", 6, removal), changed(""));
    assert_eq!(register(&mut record, 39, "c", 8, removal), repeated(""));
    assert_eq!(
        register(&mut record, 40, "c", 7, "Contact: <sip:a@h>"),
        refused(500)
    );
    assert_eq!(register(&mut record, 40, "c", 9, "Contact: <sip:a@h>"), bound);
}

/// §10.3: "MUST be committed … all or nothing": one contact fails, none changes (`register`
/// compares the whole record).
#[test]
fn a_bad_contact_leaves_all_as_they_were() {
    let mut record = AorRecord::default();
    register(&mut record, 0, "c", 5, "Contact: <sip:a@h>");
    for (lines, status) in [
        ("Contact: <sip:b@h>, <sip:a@h>", 500),
        ("Contact: <sip:b@h>, <mailto:a@h>", 400),
        ("Contact: <sip:b@h>, <sip:c@h>, <sip:d@h>", 403),
    ] {
        assert_eq!(
            register(&mut record, 1, "c", 4, lines),
            refused(status),
            "{lines}"
        );
    }
    assert_eq!(
        register(&mut record, 1, "c", 4, "Contact: <sip:b@h>, <sip:d@h>;expires=5"),
        Did::Refused(423, "Min-Expires: 60|".into())
    );
}

/// The registrar's own bound concerns the bindings after the update.
#[test]
fn contacts_are_bounded() {
    let mut record = AorRecord::default();
    let three = "Contact: <sip:a@h>, <sip:b@h>, <sip:c@h>";
    assert!(matches!(
        register(&mut record, 0, "c", 1, three),
        Did::Ok(Effect::Changed, _)
    ));
    assert_eq!(
        register(&mut record, 0, "c", 2, "Contact: <sip:d@h>"),
        refused(403)
    );
    let swap = "Contact: <sip:d@h>, <sip:d@h>;q=0.1, <sip:a@h>;expires=0";
    assert!(matches!(
        register(&mut record, 0, "c", 3, swap),
        Did::Ok(Effect::Changed, _)
    ));
    let all = "Contact: <sip:x@h>, <sip:y@h>, <sip:z@h>, <sip:b@h>;expires=0, <sip:c@h>;expires=0, <sip:d@h>;expires=0";
    assert!(matches!(
        register(&mut record, 0, "c", 4, all),
        Did::Ok(Effect::Changed, _)
    ));
    assert_eq!(
        register(&mut record, 0, "c", 5, &format!("{all}, <sip:e@h>;expires=0")),
        refused(403)
    );
    // Ended bindings take no room.
    assert!(matches!(
        register(&mut record, 9999, "c", 6, three),
        Did::Ok(Effect::Changed, _)
    ));
}

/// §10.3 step 7 with §19.1.4; RFC 5626 §6.
#[test]
fn which_binding_a_contact_names() {
    let id = |n: u32, reg: u32| format!(";+sip.instance=\"<urn:uuid:{n}>\";reg-id={reg}");
    for (first, second, same) in [
        ("<sip:a@h>".into(), "<SIP:%61@H>".into(), true),
        ("<sip:a@h>".into(), "<sip:A@h>".into(), false),
        ("<sip:a@h>".into(), "<sip:a@h:5060>".into(), false),
        ("<sip:a@h;transport=tcp>".into(), "<sip:a@h>".into(), false),
        ("<sip:a@h>".into(), "<sips:a@h>".into(), false),
        (
            format!("<sip:a@h:1>{}", id(1, 1)),
            format!("<sip:a@h:2>{}", id(1, 1)),
            true,
        ),
        (
            format!("<sip:a@h:1>{}", id(1, 1)),
            format!("<sip:a@h:1>{}", id(1, 2)),
            false,
        ),
        (
            format!("<sip:a@h:1>{}", id(1, 1)),
            format!("<sip:a@h:1>{}", id(2, 1)),
            false,
        ),
        // Without a reg-id, or without an instance, the URI decides.
        (
            "<sip:a@h:1>;+sip.instance=\"<u>\"".into(),
            "<sip:a@h:2>;+sip.instance=\"<u>\"".into(),
            false,
        ),
        (
            "<sip:a@h:1>;reg-id=1".into(),
            "<sip:a@h:2>;reg-id=1".into(),
            false,
        ),
        (format!("<sip:a@h:1>{}", id(1, 1)), "<sip:a@h:1>".into(), true),
    ] {
        let (first, second): (String, String) = (first, second);
        let mut record = AorRecord::default();
        register(&mut record, 0, "c", 1, &format!("Contact: {first}"));
        let did = register(&mut record, 1, "c", 2, &format!("Contact: {second}"));
        assert!(matches!(did, Did::Ok(Effect::Changed, _)), "{first} {second}");
        assert_eq!(
            record.bindings.len(),
            if same { 1 } else { 2 },
            "{first} {second}"
        );
        assert_eq!(record.bindings[0].cseq, 2, "the most recent first");
    }
}

/// Of phones with equal `q`, one that only refreshes keeps its place. A phone that comes back from another
/// address, or asks for another `q`, goes before the others.
#[test]
fn a_refresh_keeps_its_place() {
    // After a, b and c have registered, each with its own Call-ID: `Call-ID=contact`, with parameters, or
    // with the reg-id of a flow of one instance.
    for (what, later, order) in [
        ("nothing", "", "cba"),
        ("all refresh", "a=a c=c b=b", "cba"),
        ("a is started anew", "new=a", "acb"),
        ("a registers for two", "a=e,a b=b a=e,a", "ecba"),
        ("flows beside others", "f1=e/1 f2=f/2 n=n f1=e/1", "nefcba"),
        ("a goes down", "a=a;q=0.5", "cba"),
        ("b goes down and up", "b=b;q=0.5 b=b", "bca"),
        ("a moves", "a=d", "dcba"),
        ("a moves and back", "a=d a=a", "adcb"),
        ("a moves and refreshes there", "a=d b=b a=d", "dcba"),
        // RFC 5626 §7: the most recent flow first.
        ("flows", "f1=e/1 f2=f/2 f1=e/1", "efcba"),
        ("both flows", "f1=e/1 f2=f/2 b=b f2=f/2", "fecba"),
    ] {
        let mut record = AorRecord::default();
        for (n, step) in "a=a b=b c=c"
            .split(' ')
            .chain(later.split_terminator(' '))
            .enumerate()
        {
            let (call_id, contact) = step.split_once('=').unwrap();
            let contact = match contact.split_once('/') {
                Some((name, reg_id)) => format!("<sip:{name}@h>;+sip.instance=\"<u>\";reg-id={reg_id}"),
                None => contact
                    .split(',')
                    .map(|c| format!("<sip:{}@h>{}", &c[..1], &c[1..]))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            let lines = format!("{OUTBOUND}|Contact: {contact}");
            let did = apply_up_to(&mut record, n as u64, call_id, n as u32 + 1, &lines, 9);
            assert!(matches!(did, Did::Ok(Effect::Changed, _)), "{what}: {did:?}");
        }
        let found: String = record.bindings.iter().map(|b| char::from(b.contact[4])).collect();
        assert_eq!(found, order, "{what}");
    }
}

/// RFC 5626 §6: several flows of one instance; which is the most recent, whatever their q.
#[test]
fn flows_of_one_instance() {
    let mut record = AorRecord::default();
    let flow = |port: u32, reg: u32, q: &str| {
        format!("Contact: <sip:a@h:{port}>;q={q};+sip.instance=\"<urn:uuid:1>\";reg-id={reg}")
    };
    register(&mut record, 0, "c1", 1, &flow(1, 1, "1.0"));
    register(&mut record, 1, "c2", 1, &flow(2, 2, "0.5"));
    register(&mut record, 2, "c3", 1, "Contact: <sip:b@h>;q=0.7");
    let seen = |record: &AorRecord| -> Vec<_> {
        let text = |b: &Binding| String::from_utf8(b.contact.to_vec()).unwrap();
        record
            .bindings
            .iter()
            .map(|b| (text(b), b.updated - T0 * 1000))
            .collect()
    };
    let expected = |list: [(&str, u64); 3]| list.map(|(c, at)| (String::from(c), at)).to_vec();
    let first = [("sip:a@h:1", 0), ("sip:b@h", 2000), ("sip:a@h:2", 1000)];
    assert_eq!(seen(&record), expected(first));
    // A flow that comes back from elsewhere, with another Call-ID, takes its own place only.
    register(&mut record, 3, "c9", 1, &flow(9, 1, "1.0"));
    let second = [("sip:a@h:9", 3000), ("sip:b@h", 2000), ("sip:a@h:2", 1000)];
    assert_eq!(seen(&record), expected(second));
    // The order survives being encoded, and so do the instances.
    let mut bytes = vec![];
    crate::location::codec::encode(&record, &mut bytes);
    assert_eq!(crate::location::codec::decode(&bytes).as_ref(), Ok(&record));
    let view = crate::location::codec::RecordRef::new(&bytes).unwrap();
    let all: Vec<_> = view.bindings().map(Result::unwrap).collect();
    assert!(all[0].is_same_instance(&all[2]) && !all[0].is_same_instance(&all[1]));
    assert!(!all[1].is_same_instance(&all[1]), "no instance is nobody's");
    assert_eq!(all.iter().map(|b| b.reg_id).collect::<Vec<_>>(), [1, 0, 2]);
    // One flow is removed, the other stays.
    register(
        &mut record,
        4,
        "c2",
        2,
        &format!("{};expires=0", flow(7, 2, "0.5")),
    );
    assert_eq!(seen(&record), expected(second)[..2]);
}

/// RFC 5626 §6: the support of an edge proxy before us decides.
#[test]
fn outbound_is_the_edge_proxys() {
    let flow = "Contact: <sip:a@h>;+sip.instance=\"<u>\";reg-id=1";
    let via = "Via: SIP/2.0/UDP edge;branch=z9hG4bKe, SIP/2.0/UDP phone;branch=z9hG4bKp";
    let one = "Via: SIP/2.0/UDP phone;branch=z9hG4bKp";
    let (path, plain) = ("Path: <sip:e;lr;ob>", "Path: <sip:e;lr>");
    let outbound = "Supported: path, outbound";
    let lacks = refused(439);
    let ok = |extra: &str, reg: &str| {
        changed(&format!(
            "Contact: <sip:a@h>;expires=3600;+sip.instance=\"<u>\"{reg}|{extra}"
        ))
    };
    let echo = "Path: <sip:e;lr;ob>|Require: outbound|";
    for (lines, expected) in [
        (vec![via, path, outbound, flow], ok(echo, ";reg-id=1")),
        (vec![via, path, flow], ok("", ";reg-id=1")),
        (vec![via, plain, outbound, flow], lacks),
        (vec![via, outbound, flow], refused(439)),
        // The reg-id of a phone that does not support outbound is ignored.
        (vec![via, plain, flow], ok("", "")),
        // We are the first hop and write no flow tokens: the flow is known, and not promised.
        (vec![one, outbound, flow], ok("Require: outbound|", ";reg-id=1")),
        (vec![one, flow, "Contact: <sip:b@h>"], refused(400)),
    ] {
        let lines = lines.join("|");
        let did = register(&mut AorRecord::default(), 0, "c", 1, &lines);
        assert_eq!(did, expected, "{lines}");
    }
    // Another contact may be removed in the same REGISTER.
    let mut record = AorRecord::default();
    let lines = format!("{one}|{flow}|Contact: <sip:b@h>;expires=0");
    assert_eq!(register(&mut record, 0, "c", 1, &lines), ok("", ";reg-id=1"));
}

/// Requests of which no binding can be made.
#[test]
fn bad_requests_have_their_status() {
    let long = format!("Contact: <sip:{}@h>", "a".repeat(MAX_CONTACT));
    let long_path = format!("Path: <sip:{}@h;lr>|Contact: <sip:a@h>", "a".repeat(MAX_PATH));
    for lines in [
        "Contact: <tel:+123>",
        "Contact: <http://h/>",
        "Contact: <mailto:a@h>",
        "Contact: <sip:@h>",
        "Contact: a@h",
        "Contact: <sip:a@h",
        "Contact: <sip:a@h>;q=2",
        "Contact: <sip:a@h>;+sip.instance=\"a\\\"b\"",
        "Path: sip:p;lr|Contact: <sip:a@h>",
        "Path: <tel:+1>|Contact: <sip:a@h>",
        &long,
        &long_path,
    ] {
        assert_eq!(
            register(&mut AorRecord::default(), 0, "c", 1, lines),
            refused(400),
            "{lines}"
        );
    }
}

/// §10.3 step 2, §8.2.2.3.
#[test]
fn required_extensions_are_supported_or_420() {
    let lines = "Require: path, gruu|Require: Outbound|Contact: <sip:a@h>";
    assert_eq!(
        register(&mut AorRecord::default(), 0, "c", 1, lines),
        Did::Refused(420, "Unsupported: gruu, Outbound|".into())
    );
    let lines = "Require: path|Contact: <sip:a@h>";
    assert!(matches!(
        register(&mut AorRecord::default(), 0, "c", 1, lines),
        Did::Ok(Effect::Changed, _)
    ));
}

/// RFC 3327 §5.3.
#[test]
fn path_is_returned_only_if_supported() {
    let lines = "Contact: <sip:a@h>|Path: <sip:p;lr>|Path: <sip:q;lr>";
    let mut record = AorRecord::default();
    assert_eq!(
        register(&mut record, 0, "c", 1, lines),
        changed("Contact: <sip:a@h>;expires=3600|")
    );
    assert_eq!(
        register(
            &mut record,
            0,
            "c",
            2,
            &format!("{lines}|Supported: 100rel, path")
        ),
        changed("Contact: <sip:a@h>;expires=3600|Path: <sip:p;lr>, <sip:q;lr>|")
    );
    // A refresh without Path forgets it: the way may have changed.
    register(&mut record, 0, "c", 3, "Contact: <sip:a@h>");
    assert!(record.bindings[0].path.is_empty());
}

/// Text that a user agent writes between quotes, or folds, must not end a line of ours.
#[test]
fn nothing_is_injected() {
    let mut record = AorRecord::default();
    let lines = "Contact: <sip:a@h>|Path: \"x\r\n y\" <sip:p;lr>|Supported: path|User-Agent: b\r\n\tc";
    let got = register(&mut record, 0, "c", 1, lines);
    let Did::Ok(Effect::Changed, text) = got else {
        panic!("{got:?}")
    };
    assert_eq!(
        text,
        "Contact: <sip:a@h>;expires=3600|Path: \"x   y\" <sip:p;lr>|"
    );
    let bytes = [&record.bindings[0].path[..], &record.bindings[0].user_agent].concat();
    assert!(!bytes.iter().any(u8::is_ascii_control));
}

proptest! {
    /// After any requests: within bounds, ordered, no two bindings of one contact.
    #[test]
    fn any_sequence_follows_the_model(steps in prop::collection::vec(
        (0u64..4000, 0u8..3, 0u32..6, prop::collection::vec((0u8..5, 0u16..3, 0u32..3), 0..5)), 0..25)
    ) {
        let mut record = AorRecord::default();
        let mut at = 0;
        for (wait, call, cseq, contacts) in steps {
            at += wait;
            let contacts: Vec<String> = contacts
                .iter()
                .map(|(n, q, e)| format!("Contact: <sip:u{n}@h>;q=0.{q};expires={}", e * 1000))
                .collect();
            let _ = register(&mut record, at, &format!("c{call}"), cseq, &contacts.join("|"));
            prop_assert!(record.bindings.is_sorted_by(|a, b| a.q_milli >= b.q_milli));
            for (i, a) in record.bindings.iter().enumerate() {
                prop_assert!(record.bindings.iter().skip(i + 1).all(|b| a.contact != b.contact));
            }
        }
    }
}

/// One step of a record whose changes may fail.
#[derive(Clone, Debug)]
enum Step {
    /// This phone sends a REGISTER with these lines.
    Ask { phone: usize, lines: &'static str },
    /// One of the changes that stand is rolled back.
    Fail { which: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    let lines = prop::sample::select(vec![
        "Contact: <sip:x@h>",
        "Contact: <sip:y@h>",
        "Contact: <sip:x@h>;q=0.5",
        "Contact: <sip:x@h>, <sip:y@h>, <sip:x@h>",
        "Contact: <sip:z@h>, <sip:x@h>;expires=0",
        "Contact: <sip:x@h>;expires=0",
        "Contact: <sip:y@h>;expires=0",
        "Contact: *|Expires: 0",
    ]);
    prop_oneof![
        3 => (0..3usize, lines).prop_map(|(phone, lines)| Step::Ask { phone, lines }),
        2 => any::<prop::sample::Index>().prop_map(|which| Step::Fail { which }),
    ]
}

/// A change of a record, and its effect on each contact that it touched.
struct Change {
    lost: Vec<Binding>,
    version: u64,
    made: Vec<(Box<[u8]>, Option<Binding>)>,
}

proptest! {
    /// Whatever changes fail, and in whichever order, each contact stands as the last change that did not
    /// fail made it.
    #[test]
    fn what_failed_was_never_there(steps in prop::collection::vec(step(), 1..24)) {
        let mut record = AorRecord::default();
        let mut changes: Vec<Change> = vec![];
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Ask { phone, lines } => {
                    let before = record.clone();
                    let mut lost = AorRecord::default();
                    let call_id = ["a", "b", "c"][phone];
                    let did = with_lost(&mut record, 0, call_id, n as u32 + 1, lines, 9, &mut |b| lost.bindings.push(b));
                    if !matches!(did, Did::Ok(Effect::Changed, _)) {
                        continue;
                    }
                    // The lost bindings are encoded, as they are kept while the request waits.
                    lost.version = record.version;
                    let mut bytes = vec![];
                    crate::location::codec::encode(&lost, &mut bytes);
                    let lost = crate::location::codec::decode(&bytes).unwrap().bindings;
                    let of = |record: &AorRecord, contact: &[u8]| {
                        record.bindings.iter().find(|b| *b.contact == *contact).cloned()
                    };
                    let all = before.bindings.iter().chain(&record.bindings);
                    let touched = all.filter(|b| of(&before, &b.contact) != of(&record, &b.contact));
                    let made = touched.map(|b| (b.contact.clone(), of(&record, &b.contact)));
                    changes.push(Change { lost, version: record.version, made: made.collect() });
                }
                Step::Fail { which } if !changes.is_empty() => {
                    let failed = changes.remove(which.index(changes.len()));
                    if record.rollback(&failed.lost, failed.version, T0) {
                        record.changed(T0 * 1000);
                    }
                }
                Step::Fail { .. } => {}
            }
            let mut expected: Vec<Binding> = vec![];
            for contact in ["sip:x@h", "sip:y@h", "sip:z@h"] {
                let mut made = changes.iter().rev().flat_map(|change| &change.made);
                let last = made.find(|(touched, _)| **touched == *contact.as_bytes());
                expected.extend(last.and_then(|(_, made)| made.clone()));
            }
            let mut found = record.bindings.clone();
            found.sort_by(|a, b| a.contact.cmp(&b.contact));
            prop_assert_eq!(found, expected);
            prop_assert!(record.bindings.is_sorted_by(|a, b| a.q_milli >= b.q_milli));
        }
    }
}
