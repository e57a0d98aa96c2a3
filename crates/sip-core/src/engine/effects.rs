//! Carries out the effects of the transaction machines: messages, timers, endings.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use sip_message::{HeaderName, Message};
use smallvec::SmallVec;

use super::reply::Reply;
use super::status::Status;
use super::{ClientUser, Engine, ServerUser, Wake};
use crate::activity::Component;
use crate::event::Calls;
use crate::time::{Instant, Millis};
use crate::transaction::table::{
    Client, ClientKey, ClientMachine, Live, Server, ServerKey, ServerMachine, timer_place,
};
use crate::transaction::{
    Effect, InviteClient, InviteServer, NonInviteClient, NonInviteServer, Passed, Sink, Timer, invite_client,
    invite_server, non_invite_client, non_invite_server,
};
use crate::transport::{Flow, TransmitBatch};

/// The most settled server transactions of which the memory is kept for new ones.
const POOLED: usize = 256;
/// The longest request, in bytes, of which the memory is kept.
const POOLED_BYTES: usize = 4096;

/// Effects of one event, in order.
#[derive(Debug, Default)]
struct Effects(SmallVec<[Effect; 8]>);

impl Sink for Effects {
    fn effect(&mut self, effect: Effect) {
        self.0.push(effect);
    }
}

/// An event of a server transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerEvent {
    Timer(Timer),
    /// The request came again.
    Again,
    Ack,
    /// A response of this status is at hand.
    Respond(u16),
    /// No final response will be sent (RFC 4320 §4.2).
    Abandon,
}

/// An event of a client transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientEvent {
    Timer(Timer),
    /// A response of this status came.
    Response(u16),
    TransportError,
    Abandon,
}

/// The message of a client transaction to its transaction user: at most one for an event.
pub(crate) type PassedUp = Option<Passed>;

impl Engine {
    /// Makes a server transaction. The caller has checked the limit.
    pub(crate) fn begin_server(
        &mut self,
        hash: u128,
        invite: bool,
        source: Flow,
        reply_to: Flow,
        request: &[u8],
        source_unverified: bool,
    ) -> ServerKey {
        let mut ctx = self.machine_context(&reply_to);
        ctx.source_unverified = source_unverified;
        let mut effects = Effects::default();
        let machine = if invite {
            ServerMachine::Invite(InviteServer::new(&mut effects))
        } else {
            ServerMachine::NonInvite(NonInviteServer::new(&ctx, &mut effects))
        };
        let live = self.new_live(source, request);
        let key = self
            .table
            .insert_server(Server::new(hash, machine, reply_to, live, source_unverified));
        self.live += 1;
        self.live_invites += usize::from(invite);
        self.counters.transactions_server += 1;
        self.run_server(key, effects, &[]);
        key
    }

    /// Sends a response through its server transaction.
    pub(crate) fn send_response(&mut self, key: ServerKey, code: u16, text: &[u8]) {
        self.server_event(key, ServerEvent::Respond(code), text);
    }

    /// Handles an event of a server transaction; `text` is the response at hand.
    pub(crate) fn server_event(&mut self, key: ServerKey, event: ServerEvent, text: &[u8]) {
        let before = self.activity.enter(Component::Transaction);
        self.take_server_event(key, event, text);
        self.activity.enter(before);
    }

    fn take_server_event(&mut self, key: ServerKey, event: ServerEvent, text: &[u8]) {
        let Some(server) = self.table.server(key) else {
            return;
        };
        let mut ctx = self.machine_context(&server.reply_to);
        ctx.source_unverified = server.source_unverified;
        let Some(server) = self.table.server_mut(key) else {
            return;
        };
        let mut effects = Effects::default();
        if let (ServerEvent::Respond(status), Some(live)) = (event, &mut server.live)
            && live.user.begins_call
        {
            note_response(&mut self.calls, self.now.instant, &mut live.user, status);
        }
        match &mut server.machine {
            ServerMachine::Invite(machine) => {
                use invite_server::Event as E;
                let event = match event {
                    ServerEvent::Timer(timer) => E::Timer(timer),
                    ServerEvent::Again => E::Invite,
                    ServerEvent::Ack => E::Ack,
                    ServerEvent::Respond(100..=199) => E::SendProvisional,
                    ServerEvent::Respond(200..=299) => E::SendSuccess,
                    ServerEvent::Respond(_) => E::SendFailure,
                    // §17.2.1 knows no silent end: an INVITE always gets a final response.
                    ServerEvent::Abandon => return,
                };
                machine.handle(event, &ctx, &mut effects);
            }
            ServerMachine::NonInvite(machine) => {
                use non_invite_server::Event as E;
                let event = match event {
                    ServerEvent::Timer(timer) => E::Timer(timer),
                    ServerEvent::Again => E::Request,
                    ServerEvent::Ack => return,
                    ServerEvent::Respond(100..=199) => E::SendTrying,
                    ServerEvent::Respond(_) => E::SendFinal,
                    ServerEvent::Abandon => E::Abandon,
                };
                machine.handle(event, &ctx, &mut effects);
            }
        }
        if let ServerEvent::Respond(200..) | ServerEvent::Abandon = event {
            self.settle(key);
        }
        self.run_server(key, effects, text);
    }

    /// The live part of a new server transaction, in the memory of an old one if there is any.
    fn new_live(&mut self, source: Flow, request: &[u8]) -> Box<Live<ServerUser>> {
        let user = ServerUser {
            branches: SmallVec::new(),
            cancelled: false,
            rule: self.rule_at_hand,
            started: self.now.instant,
            alerted_us: None,
            begins_call: false,
            context: None,
        };
        match self.pool.pop() {
            Some(mut live) => {
                live.source = source;
                live.request.extend_from_slice(request);
                live.user = user;
                live
            }
            None => Box::new(Live {
                source,
                request: Vec::from(request),
                kept_bytes: 0,
                user,
            }),
        }
    }

    /// Ends the live part of a server transaction that has its final response.
    fn settle(&mut self, key: ServerKey) {
        if let Some((live, invite)) = self.table.settle(key) {
            self.live = self.live.saturating_sub(1);
            self.live_invites -= usize::from(invite && self.live_invites > 0);
            self.recycle(live);
        }
    }

    fn recycle(&mut self, mut live: Box<Live<ServerUser>>) {
        live.user.context = None;
        if self.pool.len() < POOLED && live.request.capacity() <= POOLED_BYTES {
            live.request.clear();
            live.user.branches.clear();
            self.pool.push(live);
        }
    }

    fn run_server(&mut self, key: ServerKey, effects: Effects, text: &[u8]) {
        let mut has_response = true;
        for effect in effects.0 {
            let Some(server) = self.table.server_mut(key) else {
                return;
            };
            match effect {
                Effect::SendResponse => {
                    self.out.push(server.reply_to, text);
                    if is_sent_again(server, text) {
                        let most = self.config.limits.response_bytes();
                        has_response = self.table.keep_response(key, text, most);
                        self.counters.limited_responses += u64::from(!has_response);
                    }
                }
                Effect::ResendResponse if server.response.is_empty() => self.send_trying(key),
                Effect::ResendResponse => {
                    self.out.push(server.reply_to, &server.response);
                    self.counters.retransmissions_sent += 1;
                }
                Effect::SendTrying => self.send_trying(key),
                // There is nothing to send again.
                Effect::Start(Timer::G, _) if !has_response => {}
                Effect::Start(timer, after) => {
                    let id = self
                        .wheel
                        .start(self.now.instant, after, Wake::Server(key, timer));
                    if let Some(place) = server.timers.get_mut(timer_place(timer)) {
                        *place = Some(id);
                    }
                }
                Effect::Stop(timer) => {
                    if let Some(id) = server.timers.get_mut(timer_place(timer)).and_then(Option::take) {
                        self.wheel.cancel(id);
                    }
                }
                Effect::Terminated => {
                    self.forget_server(key);
                    return;
                }
                // The request was passed up before these effects ran. If timer H fires without an ACK, or a
                // response cannot be delivered, the transaction ends silently (§17.2.1: "the TU ... SHOULD"
                // only be informed).
                Effect::PassToUser(_) | Effect::SendRequest | Effect::ResendRequest | Effect::SendAck => {}
            }
        }
    }

    /// Takes a server transaction out of the table.
    pub(crate) fn forget_server(&mut self, key: ServerKey) {
        if let Some(server) = self.table.remove_server(key) {
            for id in server.timers.into_iter().flatten() {
                self.wheel.cancel(id);
            }
            if let Some(live) = server.live {
                self.live = self.live.saturating_sub(1);
                let invite = server.machine.is_invite();
                self.live_invites -= usize::from(invite && self.live_invites > 0);
                self.recycle(live);
            }
        }
    }

    /// Sends a 100 (Trying), made from the stored request.
    fn send_trying(&mut self, key: ServerKey) {
        let Some(server) = self.table.server_mut(key) else {
            return;
        };
        let (to, invite) = (server.reply_to, server.machine.is_invite());
        let Some(live) = server.live.as_deref_mut() else {
            return;
        };
        let flow = live.source;
        // An INVITE got its 100 at once: if made again, the 100 is the same.
        let waited_us = if invite {
            0
        } else {
            self.now.instant.micros_since(live.user.started)
        };
        let request = core::mem::take(&mut live.request);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.with_message(&request, |engine, message| {
            let reply = Reply {
                status: Status::TRYING,
                extra: &[],
            };
            engine.write_late_reply(&mut text, message, flow, &reply, waited_us);
            engine.out.push(to, &text);
            engine.count_reply(100);
        });
        self.scratch = text;
        if let Some(live) = self.table.live_mut(key)
            && live.request.is_empty()
        {
            live.request = request;
        }
    }

    /// Begins a client transaction and sends its request. `wait`: the time until timer C first fires.
    pub(crate) fn begin_client(
        &mut self,
        hash: u128,
        invite: bool,
        to: Flow,
        request: &[u8],
        user: ClientUser,
        wait: Option<Millis>,
    ) -> ClientKey {
        let ctx = self.machine_context(&to);
        let mut effects = Effects::default();
        let machine = if invite {
            ClientMachine::Invite(InviteClient::new(&ctx, &mut effects))
        } else {
            ClientMachine::NonInvite(NonInviteClient::new(&ctx, &mut effects))
        };
        let key = self
            .table
            .insert_client(Client::new(hash, machine, to, Box::from(request), user));
        self.counters.transactions_client += 1;
        self.note_client(key, &to);
        if let Some(wait) = wait {
            let timer = self
                .wheel
                .start(self.now.instant, wait, Wake::Client(key, Timer::C));
            if let Some(client) = self.table.client_mut(key) {
                client.user.timer_c = Some(timer);
            }
        }
        self.run_client(key, effects, None);
        key
    }

    /// Begins a client transaction anew, in its place, and sends this request to another destination.
    pub(crate) fn restart_client(&mut self, key: ClientKey, to: Flow, request: &[u8]) {
        let ctx = self.machine_context(&to);
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        for timer in client.timers.iter_mut().filter_map(Option::take) {
            self.wheel.cancel(timer);
        }
        let mut effects = Effects::default();
        client.machine = match client.machine {
            ClientMachine::Invite(_) => ClientMachine::Invite(InviteClient::new(&ctx, &mut effects)),
            ClientMachine::NonInvite(_) => ClientMachine::NonInvite(NonInviteClient::new(&ctx, &mut effects)),
        };
        let (from, listed) = (client.to, core::mem::take(&mut client.user.listed));
        client.to = to;
        self.table.keep_request(key, Box::from(request));
        if listed {
            self.unlist_client(&from);
        }
        self.note_client(key, &to);
        self.run_client(key, effects, None);
    }

    /// Handles an event of a client transaction. Returns the message to its user. `response` is the response
    /// at hand, from which an ACK is made.
    pub(crate) fn client_event(
        &mut self,
        key: ClientKey,
        event: ClientEvent,
        response: Option<&Message<'_>>,
    ) -> PassedUp {
        let client = self.table.client(key)?;
        let ctx = self.machine_context(&client.to);
        let client = self.table.client_mut(key)?;
        let mut effects = Effects::default();
        match &mut client.machine {
            ClientMachine::Invite(machine) => {
                use invite_client::Event as E;
                let event = match event {
                    ClientEvent::Timer(timer) => E::Timer(timer),
                    ClientEvent::Response(100..=199) => E::Provisional,
                    ClientEvent::Response(200..=299) => E::Success,
                    ClientEvent::Response(_) => E::Failure,
                    ClientEvent::TransportError => E::TransportError,
                    ClientEvent::Abandon => E::Abandon,
                };
                machine.handle(event, &ctx, &mut effects);
            }
            ClientMachine::NonInvite(machine) => {
                use non_invite_client::Event as E;
                let event = match event {
                    ClientEvent::Timer(timer) => E::Timer(timer),
                    ClientEvent::Response(100..=199) => E::Provisional,
                    ClientEvent::Response(_) => E::Final,
                    ClientEvent::TransportError => E::TransportError,
                    ClientEvent::Abandon => return None,
                };
                machine.handle(event, &ctx, &mut effects);
            }
        }
        self.run_client(key, effects, response)
    }

    fn run_client(&mut self, key: ClientKey, effects: Effects, response: Option<&Message<'_>>) -> PassedUp {
        let mut told = None;
        for effect in effects.0 {
            let client = self.table.client_mut(key)?;
            match effect {
                Effect::SendRequest => {
                    push_client(&mut self.out, client, &client.request);
                }
                Effect::ResendRequest => {
                    push_client(&mut self.out, client, &client.request);
                    self.counters.retransmissions_sent += 1;
                }
                Effect::SendAck => self.send_ack(key, response),
                Effect::PassToUser(what) => told = Some(what),
                Effect::Start(timer, after) => {
                    let id = self
                        .wheel
                        .start(self.now.instant, after, Wake::Client(key, timer));
                    if let Some(place) = client.timers.get_mut(timer_place(timer)) {
                        *place = Some(id);
                    }
                }
                Effect::Stop(timer) => {
                    if let Some(id) = client.timers.get_mut(timer_place(timer)).and_then(Option::take) {
                        self.wheel.cancel(id);
                    }
                }
                Effect::Terminated => self.end_client(key, told.is_some()),
                Effect::SendResponse | Effect::SendTrying | Effect::ResendResponse => {}
            }
        }
        told
    }

    /// Ends a client transaction. If its user gets a message, the user removes the transaction when done
    /// ([`Engine::forget_client`]).
    fn end_client(&mut self, key: ClientKey, user_waits: bool) {
        if !user_waits {
            self.forget_client(key);
        }
    }

    /// Takes a client transaction out of the table.
    pub(crate) fn forget_client(&mut self, key: ClientKey) {
        if let Some(client) = self.table.remove_client(key) {
            if client.user.listed {
                self.unlist_client(&client.to);
            }
            for id in client.timers.into_iter().flatten().chain(client.user.timer_c) {
                self.wheel.cancel(id);
            }
        }
    }

    /// Whether the machine of this client transaction has ended.
    pub(crate) fn client_is_over(&self, key: ClientKey) -> bool {
        let client = self.table.client(key);
        client.is_none_or(|client| client.machine.is_terminated())
    }

    /// Sends the ACK to a 3xx to 6xx (§17.1.1.3). The ACK is made once, then kept in the INVITE's place; if
    /// there is no room for it, it is made again for each copy of the response.
    fn send_ack(&mut self, key: ClientKey, response: Option<&Message<'_>>) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        if !client.request.starts_with(b"ACK ") {
            let request = core::mem::take(&mut client.request);
            let to = response.and_then(|r| r.value(HeaderName::To)).unwrap_or_default();
            let mut text = core::mem::take(&mut self.scratch);
            text.clear();
            self.with_message(&request, |_, invite| write_derived(&mut text, invite, b"ACK", to));
            if let Some(client) = self.table.client(key) {
                push_client(&mut self.out, client, &text);
            }
            let most = self.config.limits.response_bytes();
            let is_kept = self.table.keep_request_within(key, &text, request, most);
            self.counters.limited_responses += u64::from(!is_kept);
            self.scratch = text;
        } else if let Some(client) = self.table.client(key) {
            push_client(&mut self.out, client, &client.request);
        }
    }
}

/// Sends `text` to the destination of a client transaction.
fn push_client(out: &mut TransmitBatch, client: &Client<ClientUser>, text: &[u8]) {
    out.push(client.to, text);
    out.name_last(client.user.peer.clone());
    if client.user.flow_only.holds(&client.to) {
        out.pin_last();
    }
}

/// Whether a response is to be kept: the peer can cause a retransmission, and the response cannot be made
/// again.
fn is_sent_again<U>(server: &Server<U>, text: &[u8]) -> bool {
    // A 100 is made again from the request.
    if server.reply_to.transport.is_reliable() || text.starts_with(b"SIP/2.0 100 ") {
        return false;
    }
    // The callee retransmits a 2xx to an INVITE (RFC 3261 §13.3.1.4).
    !server.machine.is_accepted()
}

/// Appends the ACK or CANCEL that belongs to `invite` as we sent it (§17.1.1.3, §9.1): its Request-URI,
/// topmost Via, Route, From, Call-ID and CSeq number. `to` replaces To, if `to` is not empty.
pub(crate) fn write_derived(out: &mut Vec<u8>, invite: &Message<'_>, method: &[u8], to: &[u8]) {
    out.extend_from_slice(method);
    out.push(b' ');
    out.extend_from_slice(invite.request_uri().unwrap_or_default());
    out.extend_from_slice(b" SIP/2.0\r\nVia: ");
    let via = invite.values(HeaderName::Via).next();
    out.extend_from_slice(via.map(|v| v.text).unwrap_or_default());
    out.extend_from_slice(b"\r\nMax-Forwards: 70\r\n");
    for field in invite.fields_named(HeaderName::Route) {
        out.extend_from_slice(b"Route: ");
        out.extend_from_slice(invite.field_value(field));
        out.extend_from_slice(b"\r\n");
    }
    let own_to = invite.value(HeaderName::To).unwrap_or_default();
    let to = if to.is_empty() { own_to } else { to };
    let fields: [(&[u8], &[u8]); 3] = [
        (b"From: ", invite.value(HeaderName::From).unwrap_or_default()),
        (b"To: ", to),
        (b"Call-ID: ", invite.value(HeaderName::CallId).unwrap_or_default()),
    ];
    for (name, value) in fields {
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"CSeq: ");
    let number = invite.cseq().map_or(0, |c| c.number);
    sip_message::number::write_decimal(out, u64::from(number));
    out.push(b' ');
    out.extend_from_slice(method);
    out.extend_from_slice(b"\r\nContent-Length: 0\r\n\r\n");
}

/// Counts a response to an INVITE that has had no final response yet.
fn note_response(calls: &mut Calls, now: Instant, user: &mut ServerUser, status: u16) {
    let after_us = now.micros_since(user.started);
    match status {
        ..=100 => {}
        101..=199 if user.alerted_us.is_some() => {}
        101..=199 => {
            let short = u32::try_from(after_us).unwrap_or(u32::MAX);
            user.alerted_us = NonZeroU32::new(short.max(1));
            calls.alerted(after_us);
        }
        _ => {
            let rang_us = user.alerted_us.map(|at| after_us.saturating_sub(at.get().into()));
            calls.completed(status, after_us, rang_us);
        }
    }
}
