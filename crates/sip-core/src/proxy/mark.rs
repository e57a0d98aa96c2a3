//! The mark of a dialog: what a Record-Route value of ours proves when it comes back as Route.
//!
//! Each side of a dialog has its own mark, so that a caller that swaps the tags does not pass for the callee.
//! The callee's mark is made of the Call-ID and the caller's tag. In each response that passes back it
//! becomes the caller's mark ([`Engine::turn_marks`]), which is made of these and of the callee's tag. The
//! change takes a [`Seed`], which only the transaction of the request has, or its Via if no state is kept. So
//! a response turns the marks of its own dialog and of no other.
//!
//! No Contact is bound, since targets change (RFC 3261 §12.2). Instead a mark names the place at each
//! end ([`crate::engine::place`]), and leads to no other guarded place.
//!
//! The 128 bits, as 32 hexadecimal digits:
//!
//! | bits | what |
//! | --- | --- |
//! | 16 | the day on which the mark was made |
//! | 20 | the domain whose secret made the mark: marks of other domains stay as they are |
//! | 16 | the place of the caller |
//! | 16 | the place of the callee |
//! | 1 | [`OF_SUBSCRIPTION`] |
//! | 5, 5, 1 | domain of the callee, if it is a contact registered here; domain of the caller; [`OF_CALLER`] |
//! | 48 | a MAC over the rest |

use alloc::vec::Vec;

use sip_message::chars::span_in;
use sip_message::header::NameAddr;
use sip_message::{HeaderName, Message, Method, Params};
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::engine::directory::MARK_DIGITS;
use crate::engine::place::{DomainNumber, PlaceId};
use crate::engine::secrets::{Secrets, hex48, read_hex, write_hex};
use crate::engine::seed::{Seed, Turn};

/// The parameter that holds the mark.
const PARAM: &[u8] = b"tz";
/// The parameter's name and separators where the mark stands in a value.
const BEFORE: [u8; 4] = *b";tz=";
const DIGITS: usize = MARK_DIGITS;
/// The first of the domain's digits, and their number.
const DOMAIN_FROM: usize = 4;
const DOMAIN_DIGITS: usize = 5;
/// The last digit of the flags, with [`OF_CALLER`] in its lowest bit. The MAC follows.
const SIDE_FROM: usize = 19;
/// Digits that differ between the marks of the two sides.
const TURNED: usize = DIGITS - SIDE_FROM;
/// Days for which a mark is good: only broken calls last longer.
const GOOD_DAYS: u16 = 32;
const DAY_MS: u64 = 86_400_000;

const DAY_AT: u32 = 112;
const DOMAIN_AT: u32 = 92;
const CALLER_AT: u32 = 76;
const CALLEE_AT: u32 = 60;
const FLAGS_AT: u32 = 48;
const MAC_BITS: u128 = (1 << FLAGS_AT) - 1;

/// The mark is the caller's; else the callee's.
const OF_CALLER: u128 = 1 << FLAGS_AT;
/// The dialog began with a SUBSCRIBE or REFER. A NOTIFY of its callee may make the dialog (RFC 6665 §4.4.1),
/// so the NOTIFY carries the caller's mark. The callee may thus hold both marks: no mark of such a dialog is
/// good for calls.
const OF_SUBSCRIPTION: u128 = 1 << (FLAGS_AT + 11);
const CALLER_DOMAIN_AT: u32 = FLAGS_AT + 1;
const CALLEE_DOMAIN_AT: u32 = FLAGS_AT + 6;

/// The mark of a dialog; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u128);

/// The ends of a dialog that begins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// The place from which the request came.
    pub(crate) caller: PlaceId,
    /// The place to which the request goes.
    pub(crate) callee: PlaceId,
    /// The domain of From, if it is ours.
    pub(crate) caller_domain: DomainNumber,
    /// The domain of the callee, if it is a contact that is registered here.
    pub(crate) callee_domain: DomainNumber,
    /// Whether the dialog begins with a SUBSCRIBE or REFER.
    pub(crate) is_subscription: bool,
}

impl Mark {
    /// The callee's mark of a dialog that begins now, and the seed of the caller's.
    pub(crate) fn new(
        secrets: &Secrets,
        unix_ms: u64,
        ends: Ends,
        call_id: &[u8],
        caller_tag: &[u8],
    ) -> (Self, Option<Seed>) {
        let flags = u128::from(ends.callee_domain & 31) << CALLEE_DOMAIN_AT
            | u128::from(ends.caller_domain & 31) << CALLER_DOMAIN_AT
            | if ends.is_subscription { OF_SUBSCRIPTION } else { 0 };
        let head = u128::from(day(unix_ms)) << DAY_AT
            | flags
            | u128::from(secrets.mark_domain()) << DOMAIN_AT
            | u128::from(ends.caller) << CALLER_AT
            | u128::from(ends.callee) << CALLEE_AT;
        Self::of_callee(secrets, head, call_id, caller_tag)
    }

    fn of_callee(secrets: &Secrets, head: u128, call_id: &[u8], caller_tag: &[u8]) -> (Self, Option<Seed>) {
        let head = head & !(MAC_BITS | OF_CALLER);
        let [says @ .., _, _, _, _, _, _] = head.to_be_bytes();
        let [mac, hidden] = secrets.mark(says, call_id, caller_tag);
        (Self(head | u128::from(mac) & MAC_BITS), Seed::new(mac, hidden))
    }

    /// The caller's mark of the same dialog. The caller's mark proves no more than this mark does: a forged
    /// mark gives a forged mark.
    pub(crate) fn of_caller(self, secrets: &Secrets, call_id: &[u8], [caller, callee]: [&[u8]; 2]) -> Self {
        let (_, seed) = Self::of_callee(secrets, self.0, call_id, caller);
        let mac = seed.map_or(0, |seed| seed.caller_mac(callee));
        Self(self.0 & !MAC_BITS | OF_CALLER | u128::from(mac))
    }

    /// Reads the digits of a mark. [`Mark::is_of`] checks whether the mark is genuine.
    #[inline]
    pub(crate) fn read(digits: &[u8]) -> Option<Self> {
        read_hex(digits, DIGITS).map(Self)
    }

    /// Reads the mark of a Route value: nearly always the last parameter, as it was written.
    #[inline]
    pub(crate) fn of_params(params: &Params<'_>) -> Option<Self> {
        let usual = params.as_bytes().last_chunk::<{ 3 + DIGITS }>();
        match usual.and_then(|tail| tail.strip_prefix(b"tz=")) {
            Some(digits) => Self::read(digits),
            None => Self::read(params.value(PARAM)?),
        }
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        write_hex(out, self.0, DIGITS as u32);
    }

    /// Whether the mark's holder is the caller.
    #[inline]
    pub(crate) const fn is_of_caller(self) -> bool {
        self.0 & OF_CALLER != 0
    }

    /// Whether the mark's dialog began with a SUBSCRIBE or REFER.
    #[inline]
    pub(crate) const fn is_of_subscription(self) -> bool {
        self.0 & OF_SUBSCRIPTION != 0
    }

    /// The domain in which the mark's holder has an account; 0: none is known.
    pub(crate) const fn domain_of_holder(self) -> DomainNumber {
        match self.is_of_caller() {
            true => (self.0 >> CALLER_DOMAIN_AT) as DomainNumber & 31,
            false => (self.0 >> CALLEE_DOMAIN_AT) as DomainNumber & 31,
        }
    }

    /// The place at the end to which the holder's requests go.
    pub(crate) const fn place_beyond(self) -> PlaceId {
        match self.is_of_caller() {
            true => (self.0 >> CALLEE_AT) as PlaceId,
            false => (self.0 >> CALLER_AT) as PlaceId,
        }
    }

    /// Whether the mark was made for its holder in this dialog, at most `GOOD_DAYS` ago. A day ahead is
    /// accepted, too: another node's clock may be ahead of ours. `from_tag` and `to_tag` are those of a
    /// request of the holder; empty: there is none.
    pub(crate) fn is_of(
        self,
        secrets: &Secrets,
        unix_ms: u64,
        call_id: &[u8],
        [from_tag, to_tag]: [&[u8]; 2],
    ) -> bool {
        let made = (self.0 >> DAY_AT) as u16;
        let age = day(unix_ms).wrapping_add(1).wrapping_sub(made);
        if age > GOOD_DAYS + 1 {
            return false;
        }
        match self.is_of_caller() {
            true => self.of_caller(secrets, call_id, [from_tag, to_tag]) == self,
            false => !to_tag.is_empty() && Self::of_callee(secrets, self.0, call_id, to_tag).0 == self,
        }
    }
}

/// Days since 1970, modulo 2^16: enough to order two days within 89 years.
const fn day(unix_ms: u64) -> u16 {
    (unix_ms / DAY_MS) as u16
}

impl Engine {
    /// Turns the callee's marks of the response's dialog into the caller's, in the Record-Route
    /// values that lead here (RFC 3261 §16.7 step 8). Marks of other dialogs and other hosts stay as
    /// they are, and so do the caller's own.
    ///
    /// This is done for each response: nearly always on the digits of the one value, without reading the rest of it.
    pub(super) fn turn_marks(&mut self, message: &Message<'_>, turn: Option<Turn>) {
        let Some(turn) = turn else {
            if message.has(HeaderName::RecordRoute) {
                self.keep_marks_from_notifier(message);
            }
            return;
        };
        let mut fields = message.fields_named(HeaderName::RecordRoute);
        match (fields.next(), fields.next()) {
            (None, _) => {}
            (Some(field), None) if self.directory.wrote_route(message.field_value(field)) => {
                let value = message.field_value(field);
                let at = value.len().saturating_sub(BEFORE.len() + DIGITS + 1);
                self.turn_mark(turn, field.value as usize, value, at);
            }
            (Some(_), _) => self.turn_marks_of_several(message, turn),
        }
    }

    /// Turns the marks in several values, or in a value that was written anew. A host that the callee put
    /// below a value of ours gets the caller's requests before this server does. So the host makes that
    /// value's mark useless ([`Seed::opened`]).
    fn turn_marks_of_several(&mut self, message: &Message<'_>, turn: Turn) {
        let to = message.to().ok();
        let callee_tag = to.as_ref().and_then(NameAddr::tag).unwrap_or_default();
        let mut here = SmallVec::<[(&[u8], Turn); 4]>::new();
        // The hash of the hosts below the value at hand, and how marks above these hosts are turned.
        let (mut below, mut known) = (0, (0, Some(turn)));
        for text in record_routes(message).into_iter().rev() {
            if let Some(further) = self.host_below(message, below, text) {
                below = further;
                continue;
            }
            if known.0 != below {
                let seed = turn.seed.opened(&self.secrets, below);
                known = (below, seed.map(|seed| seed.turn(callee_tag)));
            }
            here.extend(known.1.map(|turn| (text, turn)));
        }
        for (text, turn) in here.into_iter().rev() {
            if let Some(span) = span_in(message.source(), text) {
                self.turn_value(turn, span.start, text);
            }
        }
    }

    /// Turns the marks of one value, which begins at `start` of the message.
    fn turn_value(&mut self, turn: Turn, start: usize, value: &[u8]) {
        let mut end = value.len();
        while let Some(at) = last_mark(value, end) {
            end = at;
            self.turn_mark(turn, start, value, at);
        }
    }

    /// Turns the mark with its `;tz=` at `at` of a value, if it is the callee's of this dialog.
    #[inline]
    fn turn_mark(&mut self, turn: Turn, start: usize, value: &[u8], at: usize) {
        let Some(side) = turn.side_of(self.secrets.mark_domain_digits(), value, at) else {
            return;
        };
        let mut text = [0; TURNED];
        let (first, mac) = text.split_at_mut(1);
        first.fill(side + 1);
        mac.copy_from_slice(&hex48(turn.mac));
        let start = start + at + BEFORE.len() + SIDE_FROM;
        self.edits.replace(start..start + TURNED, &text);
    }

    /// The hash of the hosts in Record-Route without those of this server; 0: there are none.
    pub(super) fn hosts_below(&self, message: &Message<'_>) -> u64 {
        if !message.has(HeaderName::RecordRoute) {
            return 0;
        }
        let values = record_routes(message).into_iter().rev();
        values.fold(0, |below, text| {
            self.host_below(message, below, text).unwrap_or(below)
        })
    }

    /// The hash of the hosts below a value, with the value's own host. `None`: the value leads here. A value
    /// without brackets never does: its parameters are not the URI's (RFC 3261 §20.34), and another reader
    /// may think otherwise.
    fn host_below(&self, message: &Message<'_>, below: u64, text: &[u8]) -> Option<u64> {
        let addr = NameAddr::parse(text).filter(|addr| addr.bracketed);
        let uri = addr.as_ref().and_then(NameAddr::sip_uri);
        if uri.as_ref().is_some_and(|uri| self.directory.is_route_here(uri)) {
            return None;
        }
        let below = if below == 0 {
            let from = message.from().ok();
            let caller_tag = from.as_ref().and_then(NameAddr::tag).unwrap_or_default();
            self.secrets
                .below_of_dialog(message.call_id().unwrap_or_default(), caller_tag)
        } else {
            below
        };
        Some(match uri {
            Some(uri) => self.secrets.below_uri(below, &uri),
            None => self.secrets.below(below, text),
        })
    }

    /// Removes marked Record-Route values from the response to a NOTIFY. The response goes to the callee,
    /// which must not get the caller's mark, and whose route set is made already.
    #[cold]
    fn keep_marks_from_notifier(&mut self, message: &Message<'_>) {
        if !message.cseq().is_ok_and(|cseq| cseq.method == Method::Notify) {
            return;
        }
        for field in message.fields_named(HeaderName::RecordRoute) {
            let value = message.field_value(field);
            if last_mark(value, value.len()).is_some() {
                self.edits.delete(field.start as usize..field.end as usize);
            }
        }
    }
}

/// The Record-Route values of a message, from the top.
fn record_routes<'a>(message: &Message<'a>) -> SmallVec<[&'a [u8]; 8]> {
    let values = message.values(HeaderName::RecordRoute);
    values.map(|value| value.text).collect()
}

impl Turn {
    /// The last digit of the mark's flags, if the mark with its `;tz=` at `at` is the callee's of this
    /// dialog.
    #[inline]
    fn side_of(self, domain: &[u8; DOMAIN_DIGITS], value: &[u8], at: usize) -> Option<u8> {
        let digits: &[u8; DIGITS] = value.get(at + BEFORE.len()..)?.first_chunk()?;
        let side = *digits.get(SIDE_FROM)?;
        // A digit's character code has the parity of its value; a letter's has the other.
        let is_of_caller = (side & 1 == 1) ^ side.is_ascii_lowercase();
        let is_ours = side.is_ascii_hexdigit()
            && digits.last_chunk() == Some(&self.ends_with)
            && digits.get(DOMAIN_FROM..)?.first_chunk() == Some(domain);
        (is_ours && !is_of_caller).then_some(side)
    }
}

/// The position of the last mark before `end`, its `;tz=` included.
#[inline]
fn last_mark(value: &[u8], end: usize) -> Option<usize> {
    let value = value.get(..end)?;
    // The mark as we wrote it, with nothing behind it.
    let usual = value.len().checked_sub(BEFORE.len() + DIGITS + 1)?;
    if value.get(usual..).and_then(<[u8]>::first_chunk) == Some(&BEFORE) {
        return Some(usual);
    }
    memchr::memmem::rfind(value, &BEFORE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::{format, vec};
    use proptest::prelude::*;

    const DAY: u64 = DAY_MS;

    fn secrets(domain: u8) -> Secrets {
        Secrets::new(&[domain; 32], &[9; 32])
    }

    fn ends() -> impl Strategy<Value = Ends> {
        (any::<[u16; 2]>(), [0_u8..32, 0..32], any::<bool>()).prop_map(
            |([caller, callee], [caller_domain, callee_domain], is_subscription)| Ends {
                caller,
                callee,
                caller_domain,
                callee_domain,
                is_subscription,
            },
        )
    }

    proptest! {
        /// A mark is good for its holder and in its dialog; with any bit changed it is good for nothing.
        #[test]
        fn a_mark_is_good_for_its_side_only(ends in ends(), bit in 0..128_u32) {
            let secrets = secrets(7);
            let (of_callee, seed) = Mark::new(&secrets, DAY, ends, b"c1", b"a");
            let of_caller = of_callee.of_caller(&secrets, b"c1", [b"a", b"b"]);
            let turn = seed.and_then(|seed| Seed::uncovered(seed.hidden_by(7), 7)).unwrap().turn(b"b");
            prop_assert_eq!(u128::from(turn.mac), of_caller.0 & MAC_BITS, "as responses make it");
            let mut digits = b"x;tz=".to_vec();
            of_callee.write(&mut digits);
            prop_assert!(turn.side_of(secrets.mark_domain_digits(), &digits, 1).is_some());
            prop_assert_eq!(turn.side_of(&[b'x'; DOMAIN_DIGITS], &digits, 1), None);
            let is_good = |mark: Mark, call: &[u8], tags| mark.is_of(&secrets, DAY, call, tags);
            prop_assert!(is_good(of_callee, b"c1", [b"b", b"a"]));
            prop_assert!(is_good(of_caller, b"c1", [b"a", b"b"]));
            // A callee's tag is not known when its mark is made.
            prop_assert!(is_good(of_callee, b"c1", [b"x", b"a"]));
            for (mark, call, tags) in [
                (of_callee, &b"c1"[..], [&b"a"[..], &b"b"[..]]),
                (of_callee, b"c2", [b"b", b"a"]),
                (of_callee, b"c1", [b"a", b""]),
                (of_caller, b"c1", [b"b", b"a"]),
                (of_caller, b"c1", [b"a", b"x"]),
                (of_caller, b"c1", [b"a", b""]),
                (of_caller, b"c2", [b"a", b"b"]),
                (Mark(of_caller.0 ^ 1 << bit), b"c1", [b"a", b"b"]),
                (Mark(of_caller.0 ^ 1 << bit), b"c1", [b"b", b"a"]),
                (Mark(of_callee.0 ^ 1 << bit), b"c1", [b"b", b"a"]),
                (Mark(of_callee.0 ^ 1 << bit), b"c1", [b"a", b"b"]),
            ] {
                prop_assert!(!is_good(mark, call, tags), "{mark:?} {tags:?}");
            }
            prop_assert_eq!(of_callee.place_beyond(), ends.caller);
            prop_assert_eq!(of_caller.place_beyond(), ends.callee);
            prop_assert_eq!(of_callee.domain_of_holder(), ends.callee_domain);
            prop_assert_eq!(of_caller.domain_of_holder(), ends.caller_domain);
            prop_assert_eq!(of_callee.is_of_subscription(), ends.is_subscription);
            prop_assert_eq!(of_caller.is_of_subscription(), ends.is_subscription);
        }

        #[test]
        fn a_mark_is_read_as_it_was_written(ends in ends()) {
            let (mark, _) = Mark::new(&secrets(7), DAY, ends, b"c", b"a");
            let mut text = Vec::new();
            mark.write(&mut text);
            prop_assert_eq!(Mark::read(&text), Some(mark));
        }
    }

    #[test]
    fn a_mark_ends() {
        let secrets = secrets(7);
        let (mark, _) = Mark::new(&secrets, 100 * DAY, Ends::default(), b"c", b"a");
        for (today, is_good) in [(98, false), (99, true), (100, true), (132, true), (133, false)] {
            assert_eq!(
                mark.is_of(&secrets, today * DAY, b"c", [b"b", b"a"]),
                is_good,
                "{today}"
            );
        }
    }

    #[test]
    fn marks_of_another_domain_are_known_by_themselves() {
        let (mark, _) = Mark::new(&secrets(7), DAY, Ends::default(), b"c", b"a");
        let mut text = Vec::new();
        mark.write(&mut text);
        let domain = |text: &[u8]| text[DOMAIN_FROM..].to_vec();
        assert!(domain(&text).starts_with(secrets(7).mark_domain_digits()));
        assert!(!domain(&text).starts_with(secrets(8).mark_domain_digits()));
    }

    /// Two values in one line, parameters behind the mark, and text that only looks like a mark.
    #[test]
    fn marks_are_found_wherever_they_stand() {
        let mark = "00112233445566778899aabbccddeeff";
        for (value, expected) in [
            (format!("<sip:a;lr;tz={mark}>"), vec![9]),
            (format!("<sip:a;lr;tz={mark}>, <sip:b;tz={mark}>"), vec![54, 9]),
            (format!("<sip:a;tz={mark};x=y>;z"), vec![6]),
            (String::from("<sip:a;lr>"), vec![]),
            (String::new(), vec![]),
        ] {
            let mut end = value.len();
            let mut found = Vec::new();
            while let Some(at) = last_mark(value.as_bytes(), end) {
                found.push(at);
                end = at;
            }
            assert_eq!(found, expected, "{value}");
        }
    }
}
