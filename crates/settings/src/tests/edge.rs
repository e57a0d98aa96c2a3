//! Tests of rules that relay REGISTER.

use super::*;

const RULE: &str = "[[route]]\nwhen = { method = [\"REGISTER\"], domain = \"far.example\" }\n";

#[test]
fn a_rule_for_register_leads_to_a_registrar() {
    for text in [
        format!("{RULE}do = {{ relay = \"sip:192.0.2.20\" }}\n"),
        format!(
            "{RULE}do = {{ relay = \"group:r\" }}\n[[group]]\nname = \"r\"\nmembers = [{{ uri = \"sip:192.0.2.20\" }}]\n"
        ),
        format!("{RULE}do = {{ reject = 403 }}\nauth = false\n"),
    ] {
        let loaded = valid(&text);
        assert!(loaded.core.routes[0].takes_register(), "{text}");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
    let loaded = valid("[[route]]\ndo = { relay = \"sip:192.0.2.20\" }\n");
    assert!(!loaded.core.routes[0].takes_register());
}

#[test]
fn what_is_no_registrar_is_an_error() {
    let remedy = "relay to the registrar: a URI or \"group:NAME\"";
    for (rest, expected) in [
        (
            "do = { relay = \"location\" }\n",
            format!("f:3: route[0].do.relay: \"location\" is no registrar, to which a REGISTER could go; {remedy}"),
        ),
        (
            "do = { relay = \"request-uri\" }\n",
            format!("f:3: route[0].do.relay: \"request-uri\" is no registrar, to which a REGISTER could go; {remedy}"),
        ),
        (
            "do = { redirect = \"sip:192.0.2.20\" }\n",
            format!("f:3: route[0].do.redirect: a REGISTER is not redirected; {remedy}"),
        ),
        (
            "do = { relay = \"sip:192.0.2.20\" }\nauth = true\n",
            "f:4: route[0].auth: the registrar asks for the credentials of a REGISTER, and not this server; remove it, \
             or give REGISTER a rule of its own"
                .to_owned(),
        ),
        (
            "do = { relay = \"sip:192.0.2.20\" }\n[[domain]]\nname = \"example.com\"\naliases = [\"FAR.example\"]\n",
            "f:2: route[0].when.method[0]: users of example.com register here, as [[domain]] has it; remove REGISTER, \
             or that domain from [[domain]]"
                .to_owned(),
        ),
    ] {
        let lines = read(&format!("{RULE}{rest}")).expect_err(rest);
        assert_eq!(lines, [expected], "{rest}");
    }
}

/// The registrar asks for credentials, and its domain is not ours: neither needs a warning.
#[test]
fn an_edge_is_no_open_door_to_its_registrar() {
    let to_registrar =
        "[[route]]\nwhen = { domain = \"far.example\" }\ndo = { relay = \"sip:192.0.2.20\" }\nauth = false\n";
    let register = format!("{RULE}do = {{ relay = \"sip:192.0.2.20\" }}\n");
    assert_eq!(valid(&format!("{register}{to_registrar}")).warnings, [""; 0]);
    assert_eq!(valid(&format!("{to_registrar}{register}")).warnings, [""; 0]);
    let elsewhere = to_registrar.replace("sip:192.0.2.20", "sip:192.0.2.21");
    assert_eq!(
        valid(&format!("{register}{elsewhere}")).warnings,
        ["route[1] (rule 2): auth = false for every source lets any source call by that next hop"]
    );
}
