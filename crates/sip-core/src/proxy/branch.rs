//! The grammar of our Via: its branch, the mark of a forked request in it, and `tz`, by which a
//! response finds its way back without state.

use alloc::vec::Vec;
use core::ops::Range;

use sip_message::Method;
use sip_message::header::Via;
use sip_message::number::write_decimal;

use crate::engine::directory::COOKIE;
use crate::engine::secrets::{Branched, hex8, hex64, read_hex, write_hex};
use crate::engine::seed::Seed;
use crate::id::{ConnId, ListenerId};
use crate::transport::{Flow, Transport};

/// The hash by which a client transaction is found: branch and method (§17.1.3); an INVITE's is the branch
/// itself. Branches are keyed hashes, so that any difference will do. The table hash is the low half, so the
/// method is folded into 64 bits: the result is as random as the branch.
pub(crate) fn client_hash(branch: u64, method: Method<'_>) -> u128 {
    if method == Method::Invite {
        return u128::from(branch);
    }
    let name = method.as_bytes().iter();
    u128::from(name.fold(branch, |key, c| key.rotate_left(5) ^ u64::from(*c)))
}

/// The content of a Via of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct OurVia {
    pub(super) branch: Branched,
    /// Number of the branch among those of its request.
    pub(super) number: u8,
    /// The loop mark (RFC 5393 §4.2).
    pub(super) loop_mark: Option<u64>,
    /// The flow by which the response leaves, and the seed of the caller's mark in it. `None`: the
    /// client transaction has them.
    pub(super) stateless: Option<(Flow, Option<Seed>)>,
}

/// Appends our Via line.
pub(super) fn write_via(out: &mut Vec<u8>, start: &[u8], transport: Transport, via: &OurVia) {
    write_via_start(out, start, via.branch.id, via.number);
    if let Some(mark) = via.loop_mark {
        write_loop_mark(out, mark);
    }
    if transport == Transport::Udp {
        // RFC 3581 §3: the response finds its way through a NAT, and to the port that sent.
        out.extend_from_slice(b";rport");
    } else if transport == Transport::Tls {
        // RFC 5923 §8.1: a peer that accepts our certificate may send requests on the connection that
        // we open.
        out.extend_from_slice(b";alias");
    }
    if let Some((ingress, seed)) = via.stateless {
        out.extend_from_slice(b";tz=");
        write_decimal(out, u64::from(ingress.listener.0));
        if let Some(conn) = ingress.conn {
            for number in [u32::from(conn.worker.0), conn.slot, conn.generation] {
                out.push(b'.');
                write_decimal(out, u64::from(number));
            }
        }
        if let Some(seed) = seed {
            out.push(SEED);
            out.extend_from_slice(&hex64(seed.hidden_by(via.branch.pad)));
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a Via line up to its branch: behind the cookie come 16 hexadecimal digits and two for
/// the number of the branch.
pub(crate) fn write_via_start(out: &mut Vec<u8>, start: &[u8], branch: u64, number: u8) {
    out.extend_from_slice(start);
    out.extend_from_slice(&hex64(branch));
    out.extend_from_slice(&hex8(number));
}

/// Digits of a branch of ours: its hash, and the number of the branch.
pub(super) const BRANCH_DIGITS: usize = 18;

/// The least length of a branch of ours.
pub(crate) const OWN_BRANCH: usize = COOKIE.len() + BRANCH_DIGITS;

/// Reads a branch of ours: its hash and the target's number.
#[inline]
pub(crate) fn read_branch(branch: &[u8]) -> Option<(u64, u8)> {
    let digits = branch.strip_prefix(COOKIE)?;
    let (hash, rest) = digits.split_at_checked(16)?;
    let (number, mark) = rest.split_at_checked(2)?;
    (mark.is_empty() || read_loop_mark(branch).is_some()).then_some(())?;
    Some((read_hex(hash, 16)? as u64, read_hex(number, 2)? as u8))
}

/// The separator between a branch and the mark behind it.
const MARK: u8 = b'-';

/// Appends the second part of a branch (RFC 5393 §4.2.1).
fn write_loop_mark(out: &mut Vec<u8>, mark: u64) {
    out.push(MARK);
    write_hex(out, u128::from(mark), 16);
}

/// Reads the second part of a branch of ours.
pub(crate) fn read_loop_mark(branch: &[u8]) -> Option<u64> {
    let (_, mark) = branch.split_at_checked(OWN_BRANCH)?;
    let digits = mark.strip_prefix(&[MARK])?;
    read_hex(digits, 16).map(|m| m as u64)
}

/// The separator between the ingress and the seed behind it.
const SEED: u8 = b'-';

/// The value of `tz`, which [`write_via`] writes if no state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ingress {
    /// The listener at which the request came in.
    pub(crate) listener: ListenerId,
    /// The connection that the request came by.
    pub(crate) conn: Option<ConnId>,
    /// The seed of the caller's mark, hidden by [`Branched::pad`].
    pub(crate) seed: Option<u64>,
}

/// The range of the seed in a Via line of [`write_via`], and its digits with a pad changed by `pads`.
pub(super) fn rehide_seed(line: &[u8], pads: u64) -> Option<(Range<usize>, [u8; 16])> {
    let (rest, digits) = line.strip_suffix(b"\r\n")?.split_last_chunk::<16>()?;
    let seed = read_hex(digits, 16).filter(|_| rest.ends_with(&[SEED]))? as u64;
    Some((rest.len()..rest.len() + digits.len(), hex64(seed ^ pads)))
}

impl Ingress {
    /// Reads the value of `tz`.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let (text, seed) = match sip_message::chars::split_once(text, SEED) {
            (text, Some(digits)) => (text, Some(read_hex(digits, 16)? as u64)),
            (text, None) => (text, None),
        };
        let mut numbers = text.split(|c| *c == b'.').map(sip_message::number::decimal_u32);
        let listener = ListenerId(u16::try_from(numbers.next()??).ok()?);
        let Some(worker) = numbers.next() else {
            return Some(Self {
                listener,
                conn: None,
                seed,
            });
        };
        let conn = ConnId {
            worker: crate::id::WorkerId(u16::try_from(worker?).ok()?),
            slot: numbers.next()??,
            generation: numbers.next()??,
        };
        numbers.next().is_none().then_some(Self {
            listener,
            conn: Some(conn),
            seed,
        })
    }
}

/// The value of `tz` in a Via of ours, empty if `tz` stands without one. `None`: the Via has no `tz`. Nothing
/// in there is quoted: a value that we did not write does not fit the branch.
pub(super) fn ingress_token<'a>(via: &Via<'a>) -> Option<&'a [u8]> {
    let params = via.params.as_bytes();
    // Nearly always behind branch and rport, as it was written.
    let behind = |branch: &[u8]| params.strip_prefix(b";branch=")?.get(branch.len()..);
    let usual = via.branch().and_then(behind).and_then(|rest| {
        let rest = rest.strip_prefix(b";rport").unwrap_or(rest);
        let rest = match rest.strip_prefix(b"=") {
            Some(port) => port.get(port.iter().take_while(|c| c.is_ascii_digit()).count()..)?,
            None => rest,
        };
        let value = rest.strip_prefix(b";tz=")?;
        Some(sip_message::chars::split_once(value, b';').0)
    });
    if let Some(token) = usual {
        return Some(sip_message::chars::trim(token));
    }
    params.split(|c| *c == b';').find_map(|param| {
        let value = param.strip_prefix(b"tz")?;
        match value {
            [] => Some(value),
            [b'=', value @ ..] => Some(sip_message::chars::trim(value)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// The table hash is the low half of a key. Were it the same for all branches, one look-up would compare all
    /// transactions of a method.
    #[test]
    fn keys_of_one_method_differ_in_their_low_half() {
        for name in [
            "INVITE",
            "CANCEL",
            "BYE",
            "PRACK",
            "INFO",
            "NOTIFY",
            "OPTIONS",
            "MESSAGE",
            "REGISTER",
            "SUBSCRIBE",
            "PUBLISH",
            "A-METHOD-OF-MORE-LETTERS",
        ] {
            let method = Method::parse(name.as_bytes());
            let branches = (1..=1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let low: BTreeSet<u32> = branches
                .map(|branch| client_hash(branch, method) as u32)
                .collect();
            assert!(low.len() > 990, "{name}: {} of 1000", low.len());
        }
        let [invite, bye] = [Method::Invite, Method::Bye].map(|method| client_hash(7, method));
        assert_ne!(invite, bye);
    }
}
