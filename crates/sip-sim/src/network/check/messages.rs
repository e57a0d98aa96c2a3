//! Rules about which messages servers may send at all.

use super::super::phone::ASSERTED;
use super::{Case, Violation};

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let servers = case.scenario.servers.len();
    for sent in &case.log.sent {
        let call = sent.facts.call;
        if sent.to.is_none() {
            let what = format!("node {} sends {:?} to nobody", sent.from, sent.facts.method);
            found.push(Violation::new("stranger", call, what));
        }
        if sent.from >= servers {
            continue;
        }
        // RFC 3325 §5: the identity that an untrusted sender asserts goes no further.
        if sent.text.contains(ASSERTED) {
            let what = format!(
                "S{} passes an asserted identity on in {}",
                sent.from,
                first_line(&sent.text)
            );
            found.push(Violation::new("identity", call, what));
        }
        // RFC 3261 §22.3: credentials for a server's own realm end there.
        let caller = case.scenario.calls.iter().find(|c| Some(c.call) == call);
        let home = caller
            .and_then(|c| case.scenario.phones.get(c.from))
            .map(|phone| case.scenario.home_of(phone.user));
        if sent.facts.credentials && home == Some(sent.from) {
            let what = format!("S{} passes credentials for its realm on", sent.from);
            found.push(Violation::new("credentials", call, what));
        }
    }
    found
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
