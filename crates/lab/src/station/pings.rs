//! NAT keep-alive: a server that pings many registered contacts, and the phones.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Station;
use super::crowd::{Clients, Crowd, Ground};
use super::steps::seconds;
use crate::cpu;
use crate::crowd::said;
use crate::failure::{Failure, Outcome};
use crate::load::DOMAIN;
use crate::memory::resident;
use crate::metrics::{self, Page, component};
use crate::process::{Child, ports};
use crate::servers::{Ports, Site, fresh, pinging};
use crate::steps::{Counted, Phase, PingPlan, Pinged, REGISTRATIONS};

/// How long all phones may take to register.
const REGISTERING: Duration = Duration::from_secs(900);
/// How long the phones may take to say something.
const SAYING: Duration = Duration::from_secs(60);
/// What the server counts.
const SENT: &str = "trapezoid_pings_sent_total";
const ANSWERED: &str = "trapezoid_pings_answered_total";
const CONTACTS: &str = "trapezoid_registered_contacts";

/// A server that pings.
#[derive(Debug)]
struct Pinger {
    child: Child,
    ports: Ports,
}

impl Pinger {
    fn page(&self) -> Outcome<Page> {
        let page = metrics::read(ports::local(self.ports.admin));
        page.map_err(|error| Failure::failed("the server's metrics", error))
    }

    fn memory(&self) -> u64 {
        resident(self.child.pid())
    }

    /// Datagrams that were dropped at the server's socket and at the phones' since they were bound.
    fn drops(&self) -> (u64, u64) {
        (ports::drops(self.ports.sip), ports::drops(self.ports.uas))
    }
}

/// Seconds of CPU of each component.
fn components(before: &Page, after: &Page) -> BTreeMap<String, f64> {
    let mut parts: BTreeMap<String, f64> = BTreeMap::new();
    for (name, seconds) in after.components_since(before) {
        *parts.entry(component(&name)).or_default() += seconds;
    }
    parts
}

impl Station<'_> {
    /// Registers contacts, and measures what the server does to keep their NATs open: first while the phones answer,
    /// then while they do not.
    pub(super) fn pings(&self, plan: &PingPlan) -> Outcome<Pinged> {
        let directory = self.directory("pings");
        fresh(&directory)?;
        let ports = Ports::free()?;
        let site = Site {
            launcher: &self.launcher,
            program: &self.program,
            directory: directory.clone(),
            ports,
            cpus: &[self.cpus.server],
            workers: 1,
            groups: &[],
            database: None,
            certificates: None,
        };
        let child = pinging(plan, &site)?;
        let pinger = Pinger { child, ports };
        let mut found = Pinged {
            before: pinger.memory(),
            ..Pinged::default()
        };
        let ground = Ground {
            launcher: &self.launcher,
            program: &self.program,
            directory: &directory,
            cpu: self.cpus.other,
        };
        let options = [
            ("target", ports::local(ports.sip).to_string()),
            ("name", DOMAIN.to_owned()),
            ("count", plan.contacts.to_string()),
            ("rate", REGISTRATIONS.to_string()),
            ("port", ports.uas.to_string()),
        ];
        let mut phones = Crowd::start(&ground, &Clients::new("phones", None, &options))?;
        if phones.ready(REGISTERING)? == 0 {
            let said: said::Phones = phones.row(SAYING)?;
            return Err(Failure::Failed(format!("no phone could register: {said:?}")));
        }
        self.stop.sleep(seconds(plan.settle_s()))?;
        found.known = pinger.page()?.total(CONTACTS);
        found.registered = pinger.memory();
        for (order, rounds) in [(said::COUNT, plan.rounds), (said::MUTE, plan.unanswered_rounds)] {
            if rounds > 0 {
                let time = seconds(f64::from(rounds * plan.interval_s));
                let phase = self.phase(&pinger, &mut phones, order, time)?;
                found.phases.push(Phase { rounds, ..phase });
            }
        }
        found.after = pinger.memory();
        found.phones = phones.row(SAYING)?;
        Ok(found)
    }

    /// Some time of pings, after an order to the phones. What came before the order belongs to no phase.
    fn phase(&self, pinger: &Pinger, phones: &mut Crowd, order: &str, time: Duration) -> Outcome<Phase> {
        phones.ask::<said::Pings>(order, SAYING)?;
        let (page_before, drops_before) = (pinger.page()?, pinger.drops());
        let before = cpu::sample(pinger.child.pid());
        self.stop.sleep(time)?;
        let after = cpu::sample(pinger.child.pid());
        let (page, drops) = (pinger.page()?, pinger.drops());
        let heard = phones.ask(said::COUNT, SAYING)?;
        let grown = |name: &str| page.total(name) - page_before.total(name);
        Ok(Phase {
            answered: order != said::MUTE,
            rounds: 0,
            server: cpu::used(&before, &after),
            counted: Counted {
                seconds: (page.at - page_before.at).as_secs_f64(),
                sent: grown(SENT),
                answered: grown(ANSWERED),
            },
            heard,
            server_drops: drops.0.saturating_sub(drops_before.0),
            phone_drops: drops.1.saturating_sub(drops_before.1),
            components: components(&page_before, &page),
        })
    }
}
