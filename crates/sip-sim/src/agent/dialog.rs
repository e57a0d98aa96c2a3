//! Dialogs, as both sides of a call keep them (RFC 3261 §12), and responses (§8.2.6).

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::Core;
use crate::message::{View, address_of, bracketed, tag};

/// A dialog.
#[derive(Clone, Debug)]
pub(crate) struct Dialog {
    pub(crate) call_id: String,
    /// From of our requests.
    pub(crate) local: String,
    /// To of our requests.
    pub(crate) remote: String,
    /// Contact of the other side.
    pub(crate) target: String,
    /// Route values, in order.
    pub(crate) route: Vec<String>,
    /// CSeq number of our last request.
    pub(crate) cseq: u32,
}

impl Dialog {
    /// The caller's dialog, from the 2xx to its INVITE (§12.1.2).
    pub(crate) fn of_caller(answer: &View<'_>, cseq: u32) -> Self {
        let mut route: Vec<String> = answer.all("Record-Route").map(str::to_owned).collect();
        route.reverse();
        Self {
            call_id: answer.get("Call-ID").to_owned(),
            local: answer.get("From").to_owned(),
            remote: answer.get("To").to_owned(),
            target: bracketed(answer.get("Contact")).to_owned(),
            route,
            cseq,
        }
    }

    /// The callee's dialog, from the INVITE (§12.1.1).
    pub(crate) fn of_callee(invite: &View<'_>, to_tag: &str) -> Self {
        Self {
            call_id: invite.get("Call-ID").to_owned(),
            local: format!("{};tag={to_tag}", invite.get("To")),
            remote: invite.get("From").to_owned(),
            target: bracketed(invite.get("Contact")).to_owned(),
            route: invite.all("Record-Route").map(str::to_owned).collect(),
            cseq: 0,
        }
    }

    /// Whether a tag is the other side's.
    pub(crate) fn is_with(&self, their_tag: &str) -> bool {
        tag(&self.remote) == their_tag
    }

    /// A request in the dialog with `branch`, and its destination (§12.2.1.1; every router here is a loose
    /// one). `extra`: more header lines.
    pub(crate) fn request(
        &self,
        core: &Core,
        method: &str,
        branch: &str,
        extra: &str,
    ) -> (SocketAddr, String) {
        let mut text = format!(
            "{method} {} SIP/2.0\r\nVia: {}\r\nMax-Forwards: 70\r\n",
            self.target,
            core.via(branch)
        );
        for route in &self.route {
            let _ = write!(text, "Route: {route}\r\n");
        }
        let _ = write!(
            text,
            "From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {} {method}\r\n{extra}Content-Length: 0\r\n\r\n",
            self.local, self.remote, self.call_id, self.cseq
        );
        let hop = self.route.first().map_or(self.target.as_str(), |r| bracketed(r));
        (address_of(hop).unwrap_or(core.proxy), text)
    }
}

/// A response to `request`. If To has no tag and the status is not 100, `to_tag` is added, unless it is
/// empty.
pub(crate) fn answer(request: &str, status: &str, to_tag: &str, extra: &str) -> String {
    let view = View::new(request);
    let mut text = format!("SIP/2.0 {status}\r\n");
    for via in view.all("Via") {
        let _ = write!(text, "Via: {via}\r\n");
    }
    for route in view.all("Record-Route") {
        let _ = write!(text, "Record-Route: {route}\r\n");
    }
    let own = if view.to_tag().is_empty() && !to_tag.is_empty() && !status.starts_with("100") {
        format!(";tag={to_tag}")
    } else {
        String::new()
    };
    let _ = write!(
        text,
        "From: {}\r\nTo: {}{own}\r\nCall-ID: {}\r\nCSeq: {}\r\n{extra}Content-Length: 0\r\n\r\n",
        view.get("From"),
        view.get("To"),
        view.get("Call-ID"),
        view.get("CSeq"),
    );
    text
}
