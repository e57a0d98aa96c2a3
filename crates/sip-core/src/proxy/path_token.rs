//! Path tokens (RFC 5626 §5.2): the flow of a REGISTER as the user part of our Path. By it the registrar behind
//! this edge reaches the phone.
//!
//! A path token names the flow as a flow token does ([`super::flow_token`]), and beside it the place of the
//! registrar that it was given to ([`crate::engine::place`]). The MAC has a key of its own and covers no dialog:
//! requests of any dialog come with it, for as long as the registration lasts. So it is good only from that
//! registrar, or from a peer in `[trust]`. A phone, which may see the token in a 200, reaches nothing by it.
//!
//! The user part begins with `path.`, which no flow token does. A Route of ours with that start and a wrong MAC
//! is refused.

use alloc::vec::Vec;

use super::flow_token::{MAC, RouteFlow, decode, encode, read_base64url, write_base64url};
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::place::PlaceId;
use crate::engine::request::Request;
use crate::engine::secrets::Secrets;
use crate::engine::status::Status;
use crate::resolve::HostRef;
use crate::transport::{Flow, Proof};

/// The start of the user part. A point stands in no base64url text.
const START: &[u8] = b"path.";

/// A path token as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathToken {
    route: RouteFlow,
    /// The node that has the flow.
    node: u16,
    /// The place of the registrar.
    place: PlaceId,
}

/// The token behind the start of a user part; `None`: the user part is no path token.
pub(super) fn token_in(user: &[u8]) -> Option<&[u8]> {
    user.strip_prefix(START)
}

impl Engine {
    /// Appends the user part with the token of a flow, for the registrar at this place.
    pub(super) fn write_path_token(&self, out: &mut Vec<u8>, route: &RouteFlow, place: PlaceId) {
        out.extend_from_slice(START);
        seal(&self.secrets, self.config.node_id, out, route, place);
    }

    /// Reads what stands behind the start of a path token. `None`: no node of ours wrote it.
    #[cold]
    #[inline(never)] // Its frame would be paid for with each Route.
    pub(super) fn read_path_token(&self, text: &[u8]) -> Option<PathToken> {
        open(&self.secrets, text)
    }

    /// The flow that the path token in the Route of a request leads to.
    ///
    /// # Errors
    /// The status to respond with: 403 for a token that is not ours or not for this source, 430 for a flow of
    /// another node.
    #[cold]
    #[inline(never)]
    pub(crate) fn flow_of_path(
        &mut self,
        request: &Request<'_>,
        token: Option<PathToken>,
    ) -> Result<RouteFlow, Status<'static>> {
        let Some(token) = token else {
            self.counters.path_tokens_forged += 1;
            return Err(Status::FORGED_TOKEN);
        };
        if !self.may_use_path(&request.flow, token.place) {
            return Err(self.foreign_path());
        }
        if token.node != self.config.node_id {
            return Err(Status::FLOW_FAILED);
        }
        Ok(token.route)
    }

    /// Counts a path token that leads nowhere in this request. Returns the status to respond with.
    #[cold]
    pub(crate) fn foreign_path(&mut self) -> Status<'static> {
        self.counters.path_tokens_foreign += 1;
        Status::FOREIGN_PATH
    }

    /// Whether requests that come by this flow may use path tokens that were given to the registrar at `place`.
    fn may_use_path(&self, flow: &Flow, place: PlaceId) -> bool {
        let ip = source_of(flow).to_canonical();
        let is_registrar = || {
            !matches!(flow.proof, Proof::Ourselves | Proof::Page)
                && self.is_registrar_place(place)
                && self.places_of(HostRef::Ip(ip)).contains(&place)
        };
        self.is_trusted(flow) || is_registrar()
    }

    /// Whether a rule relays REGISTER to this place.
    pub(crate) fn is_registrar_place(&self, place: PlaceId) -> bool {
        let mut rules = self.config.routes.iter().enumerate();
        place != 0
            && rules
                .any(|(number, rule)| rule.takes_register() && self.directory.place_of_rule(number) == place)
    }
}

fn seal(secrets: &Secrets, node: u16, out: &mut Vec<u8>, route: &RouteFlow, place: PlaceId) {
    let mut bytes = encode(route, node);
    bytes.extend_from_slice(&place.to_be_bytes());
    let mac = secrets.path_mac(&bytes);
    bytes.extend_from_slice(&mac.to_be_bytes());
    write_base64url(out, &bytes);
}

fn open(secrets: &Secrets, text: &[u8]) -> Option<PathToken> {
    let bytes = read_base64url(text)?;
    let (body, mac) = bytes.split_last_chunk::<MAC>()?;
    // One word is compared with one word: the time that this takes reveals nothing.
    (secrets.path_mac(body) == u64::from_be_bytes(*mac)).then_some(())?;
    let (flow, place) = body.split_last_chunk()?;
    let (route, node) = decode(flow)?;
    Some(PathToken {
        route,
        node,
        place: u16::from_be_bytes(*place),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::codec::tests::flow;
    use proptest::prelude::*;

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    proptest! {
        /// RFC 5626 §5.2: a token that is not exactly as it was written is forged, and so is one under the key
        /// of flow tokens or of another domain.
        #[test]
        fn a_token_is_good_as_it_was_written_only(
            flow in flow(),
            [only, to_initiator]: [bool; 2],
            node: u16,
            place: PlaceId,
        ) {
            let route = RouteFlow { flow, only, to_initiator };
            let token = PathToken { route, node, place };
            let secrets = Secrets::new(&[7; 32], &[9; 32]);
            let mut text = Vec::new();
            seal(&secrets, node, &mut text, &route, place);
            prop_assert!(text.len() <= 58, "{}", text.len());
            prop_assert_eq!(open(&secrets, &text), Some(token));
            // Another worker or node of the domain has the same secret, and a seed of its own.
            prop_assert_eq!(open(&Secrets::new(&[7; 32], &[8; 32]), &text), Some(token));
            prop_assert_eq!(open(&Secrets::new(&[6; 32], &[9; 32]), &text), None);
            let mut other_key = encode(&route, node);
            other_key.extend_from_slice(&place.to_be_bytes());
            let mac = secrets.flow_mac(&other_key, b"", b"");
            other_key.extend_from_slice(&mac.to_be_bytes());
            let mut forged = Vec::new();
            write_base64url(&mut forged, &other_key);
            prop_assert_eq!(open(&secrets, &forged), None);
            for (at, bit) in (0..text.len()).flat_map(|at| (0..6).map(move |bit| (at, bit))) {
                let mut changed = text.clone();
                let value = ALPHABET.iter().position(|digit| *digit == text[at]).unwrap();
                changed[at] = ALPHABET[value ^ 1 << bit];
                prop_assert_eq!(open(&secrets, &changed), None, "digit {}, bit {}", at, bit);
            }
        }

        #[test]
        fn any_text_is_survived(text in prop::collection::vec(any::<u8>(), 0..80)) {
            let secrets = Secrets::new(&[7; 32], &[9; 32]);
            prop_assert_eq!(open(&secrets, &text), None);
        }
    }
}
