//! The removal of bindings by an operator.
//!
//! The record changes as by a REGISTER with `Expires: 0` of the user agent itself. The bindings get
//! tombstones ([`RecentChanges`]), so that a late copy of the REGISTER that made one does not make it again.
//! The user agent's next REGISTER does.
//!
//! [`RecentChanges`]: super::RecentChanges

use alloc::vec::Vec;

use sip_message::Uri;

use super::{AorRecord, Binding, Identity};
use crate::id::ConnId;
use crate::transport::Flow;

/// Bindings that [`AorRecord::unregister`] removed.
#[derive(Clone, Debug)]
pub struct Removal {
    lost: Vec<Binding>,
    /// The version that the removal gave the record.
    version: u64,
}

impl Removal {
    /// The number of removed bindings that had not ended at this second.
    pub fn live(&self, now_unix_s: u64) -> usize {
        let live = |binding: &&Binding| binding.expires_unix_s > now_unix_s;
        self.lost.iter().filter(live).count()
    }

    /// The connections over which phones had made them, without a proxy between.
    pub fn flows(&self) -> impl Iterator<Item = ConnId> {
        let direct = self.lost.iter().filter(|binding| binding.path.is_empty());
        direct.filter_map(|binding| binding.received.conn)
    }

    /// The version of the record after the removal.
    pub const fn version(&self) -> u64 {
        self.version
    }
}

impl AorRecord {
    /// Removes the bindings of the URI `contact` that are also `wanted`, and gives the record its next version.
    /// Without a `contact`, those of any URI. `None`, without a change: no such binding is live.
    pub fn unregister(
        &mut self,
        contact: Option<&[u8]>,
        wanted: impl Fn(&Binding) -> bool,
        now_unix_ms: u64,
    ) -> Option<Removal> {
        let uri = contact.and_then(|contact| Uri::parse(contact).ok());
        let is_meant = |binding: &Binding| {
            if !wanted(binding) {
                return false;
            }
            let Some(contact) = contact else { return true };
            let named = Identity {
                contact,
                instance: &[],
                reg_id: 0,
                device: None,
            };
            named.is(binding.identity(), || {
                match (&uri, Uri::parse(&binding.contact)) {
                    (Some(Uri::Sip(named)), Ok(Uri::Sip(uri))) => *named == uri,
                    _ => false,
                }
            })
        };
        if !self.live(now_unix_ms / 1000).any(is_meant) {
            return None;
        }
        let (lost, kept) = core::mem::take(&mut self.bindings)
            .into_iter()
            .partition(is_meant);
        self.bindings = kept;
        for binding in &lost {
            self.remember(binding.clone(), binding.cseq, now_unix_ms);
        }
        self.changed(now_unix_ms);
        Some(Removal {
            lost,
            version: self.version,
        })
    }

    /// Removes the bindings of a flow by UDP, and gives the record its next version. Returns whether there were any. There are
    /// no tombstones: a REGISTER by that flow shows that its phone is there.
    pub(crate) fn remove_received(&mut self, flow: &Flow, now_unix_ms: u64) -> bool {
        let before = self.bindings.len();
        self.bindings.retain(|binding| binding.received != *flow);
        let is_changed = self.bindings.len() < before;
        if is_changed {
            self.changed(now_unix_ms);
        }
        is_changed
    }

    /// Rolls back a removal that could not be stored; later changes stand. Returns whether the record
    /// changed, and gives it its next version if so.
    pub fn restore(&mut self, removal: &Removal, now_unix_ms: u64) -> bool {
        let changes = self.rollback(&removal.lost, removal.version, now_unix_ms / 1000);
        if changes {
            self.changed(now_unix_ms);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::super::shard::tests::binding;
    use super::*;
    use alloc::vec;

    const NOW_MS: u64 = 1_000_000;

    /// Two live bindings, and one that has ended.
    fn record() -> AorRecord {
        let mut record = AorRecord::default();
        for (contact, end) in [
            ("sip:bob@192.0.2.1;transport=udp", 2_000),
            ("sip:bob@192.0.2.2", 2_000),
            ("sip:bob@192.0.2.3", 999),
        ] {
            record.put(binding(contact, 1000, end));
        }
        record.changed(NOW_MS - 1);
        record
    }

    fn contacts(record: &AorRecord) -> Vec<&str> {
        let contacts = record.bindings.iter();
        contacts
            .map(|b| core::str::from_utf8(&b.contact).unwrap())
            .collect()
    }

    #[test]
    fn all_of_them_or_one_by_its_uri() {
        let mut all = record();
        let removal = all.unregister(None, |_| true, NOW_MS).unwrap();
        assert_eq!((removal.live(NOW_MS / 1000), removal.version()), (2, NOW_MS));
        assert_eq!((contacts(&all), all.version), (vec![], NOW_MS));
        assert!(all.unregister(None, |_| true, NOW_MS + 1).is_none());
        assert_eq!(all.version, NOW_MS);

        // RFC 3261 §19.1.4: escapes, and the case of the host.
        let mut one = record();
        let removal = one
            .unregister(Some(b"sip:%62ob@192.0.2.2"), |_| true, NOW_MS)
            .unwrap();
        assert_eq!(removal.live(NOW_MS / 1000), 1);
        assert_eq!(
            contacts(&one),
            ["sip:bob@192.0.2.3", "sip:bob@192.0.2.1;transport=udp"]
        );
    }

    /// Two phones behind two NATs may have one Contact.
    #[test]
    fn of_one_uri_those_that_are_wanted() {
        let mut record = AorRecord::default();
        for port in [1_024, 1_025] {
            let mut phone = binding("sip:bob@10.0.0.2", 1000, 2_000);
            phone.received.remote.set_port(port);
            record.bindings.push(phone);
        }
        let from = |port: u16| move |binding: &Binding| binding.received.remote.port() == port;
        let contact = Some(b"sip:bob@10.0.0.2".as_slice());
        assert!(record.unregister(contact, from(1_026), NOW_MS).is_none());
        let removal = record.unregister(contact, from(1_024), NOW_MS).unwrap();
        assert_eq!(removal.live(1_000), 1);
        assert_eq!(record.bindings[0].received.remote.port(), 1_025);
        assert!(record.unregister(None, from(1_024), NOW_MS).is_none());
        assert!(record.unregister(None, from(1_025), NOW_MS).is_some());
    }

    #[test]
    fn what_is_not_live_is_not_removed() {
        let mut record = record();
        let before = record.clone();
        for contact in ["sip:bob@192.0.2.3", "sip:bob@192.0.2.4", "bob", ""] {
            assert!(
                record
                    .unregister(Some(contact.as_bytes()), |_| true, NOW_MS)
                    .is_none(),
                "{contact}"
            );
        }
        assert_eq!(record, before);
    }

    #[test]
    fn each_flow_of_a_device_with_that_contact() {
        let mut record = AorRecord::default();
        for reg_id in [1, 2] {
            let mut flow = binding("sip:bob@192.0.2.1;ob", 1000, 2_000);
            flow.instance = b"<urn:uuid:1>".as_slice().into();
            flow.reg_id = reg_id;
            record.put(flow);
        }
        let removal = record
            .unregister(Some(b"sip:bob@192.0.2.1;ob"), |_| true, NOW_MS)
            .unwrap();
        assert_eq!((removal.live(1_000), record.bindings.len()), (2, 0));
    }

    /// A copy of the REGISTER that made the binding is older than the removal; the user agent's next one is
    /// not.
    #[test]
    fn what_was_removed_is_remembered() {
        let mut record = record();
        let of = record.bindings[0].clone();
        record.unregister(None, |_| true, NOW_MS).unwrap();
        let is_behind = |cseq, seconds| {
            let now = NOW_MS / 1000 + seconds;
            record
                .recent
                .is_behind_removal(&of.call_id, cseq, now, |b| b.contact == of.contact)
        };
        assert!(is_behind(of.cseq, 0) && is_behind(of.cseq, 36));
        assert!(!is_behind(of.cseq + 1, 0) && !is_behind(of.cseq, 37));
    }

    #[test]
    fn what_could_not_be_stored_is_there_again() {
        let mut record = record();
        let before = record.clone();
        let removal = record.unregister(None, |_| true, NOW_MS).unwrap();
        // Another phone has registered meanwhile.
        let mut other = binding("sip:bob@192.0.2.9", 1000, 2_000);
        other.updated = record.next_version(NOW_MS);
        record.put(other);
        record.changed(NOW_MS);
        assert!(record.restore(&removal, NOW_MS));
        let mut expected = contacts(&before);
        expected.retain(|contact| *contact != "sip:bob@192.0.2.3");
        expected.insert(0, "sip:bob@192.0.2.9");
        assert_eq!((contacts(&record), record.version), (expected, NOW_MS + 2));
        assert!(!record.restore(&removal, NOW_MS), "it is back already");
        assert_eq!(record.version, NOW_MS + 2);
    }
}
