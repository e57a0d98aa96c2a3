//! A server of ours that pings contacts behind NATs.

use super::{PATIENCE, Site};
use crate::failure::Outcome;
use crate::load::{DOMAIN, Transport};
use crate::process::{Child, ports};
use crate::steps::PingPlan;

/// Bytes that registrations may take: a million of them, whatever memory the machine has.
const LOCATION_BYTES: u64 = 4 << 30;

/// Starts the server and waits until it answers.
pub(crate) fn pinging(plan: &PingPlan, site: &Site<'_>) -> Outcome<Child> {
    let config = site.write("trapezoid.toml", &configuration(plan, site))?;
    let mut child = site.serve(config)?;
    child.wait_until(PATIENCE, || ports::answers(Transport::Udp, site.ports.sip))?;
    Ok(child)
}

/// Registrations in memory from loopback addresses, without credentials and without transactions.
fn configuration(plan: &PingPlan, site: &Site<'_>) -> String {
    format!(
        "[server]\nworkers = {workers}\ndata_dir = \"data\"\ndrain_s = 1\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:{sip}\"\n\
         [nat]\nping = \"{ping}\"\nping_s = {interval_s}\n\
         [destinations]\nallow = [\"127.0.0.0/8\"]\n\
         [location]\nurl = \"memory:\"\ndurability = \"memory\"\n\
         [[domain]]\nname = \"{DOMAIN}\"\n[domain.auth]\nmethods = []\n\
         [state]\nmode = \"stateless\"\n\
         [limits]\nlocation_bytes = {LOCATION_BYTES}\n\
         [admin]\nlisten = \"127.0.0.1:{admin}\"\ncpu_split = true\n",
        workers = site.workers,
        sip = site.ports.sip,
        ping = plan.ping.word(),
        interval_s = plan.interval_s,
        admin = site.ports.admin,
    )
}

#[cfg(test)]
mod tests {
    use super::super::with_bare_site;
    use super::*;
    use crate::steps::Ping;

    #[test]
    fn the_configuration_says_how_contacts_are_pinged() {
        let plan = PingPlan {
            ping: Ping::Crlf,
            contacts: 1,
            interval_s: 25,
            rounds: 2,
            unanswered_rounds: 0,
        };
        let text = with_bare_site(|site| configuration(&plan, site));
        assert!(text.contains("[nat]\nping = \"crlf\"\nping_s = 25\n"), "{text}");
        assert!(text.contains("address = \"127.0.0.1:5060\"\n"), "{text}");
    }
}
