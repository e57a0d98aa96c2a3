//! CANCEL (RFC 3261 §9, §16.10).

use sip_message::Method;

use super::branch::client_hash;
use crate::engine::effects::ServerEvent;
use crate::engine::effects::write_derived;
use crate::engine::reply::Reply;
use crate::engine::status::Status;
use crate::engine::{ClientUser, Engine, TransactionUser, Wake};
use crate::time::Millis;
use crate::transaction::Timer;
use crate::transaction::table::{ClientKey, ServerKey};

impl Engine {
    /// Cancels the pending branches of an INVITE transaction for which a CANCEL came.
    pub(crate) fn cancel_server(&mut self, server: ServerKey) {
        let Some(found) = self.table.live_mut(server) else {
            return;
        };
        if found.user.cancelled {
            return;
        }
        found.user.cancelled = true;
        let pending = match &mut found.user.context {
            Some(context) => {
                context.end();
                context.is_pending()
            }
            None => !found.user.branches.is_empty(),
        };
        let branches = found.user.branches.clone();
        for client in branches {
            self.cancel_client(client);
        }
        // If nothing is pending (the request waits for a back-end, say), this server responds at once.
        if !pending {
            self.finish(server, None);
        }
    }

    /// Cancels all branches but `except` that have no final response (§16.7 step 10).
    pub(crate) fn cancel_others(&mut self, server: ServerKey, except: ClientKey) {
        let Some(found) = self.table.live(server) else {
            return;
        };
        if found.user.branches.len() < 2 {
            return;
        }
        for client in found.user.branches.clone() {
            if client != except {
                self.cancel_client(client);
            }
        }
    }

    /// Cancels one branch: now if a provisional response came, else as soon as one does (§9.1).
    pub(crate) fn cancel_client(&mut self, key: ClientKey) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        // A branch with a final response (another address is being tried) is left alone.
        let machine = &client.machine;
        let pending = machine.is_ringing() || (machine.is_invite() && machine.has_no_response());
        if client.user.cancel_sent || !pending {
            return;
        }
        if !client.user.provisional {
            client.user.cancel_wanted = true;
            return;
        }
        client.user.cancel_sent = true;
        let (to, cancel_hash) = (client.to, client_hash(client.hash() as u64, Method::Cancel));
        let user = ClientUser {
            peer: client.user.peer.clone(),
            flow_only: client.user.flow_only,
            ..ClientUser::new(TransactionUser::Detached)
        };
        let request = core::mem::take(&mut client.request);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.with_message(&request, |_, invite| {
            write_derived(&mut text, invite, b"CANCEL", &[])
        });
        // §9.1: no final response within 64·T1 and the INVITE counts as cancelled.
        let patience = Millis(self.config.timers.t1_ms.saturating_mul(64));
        if let Some(client) = self.table.client_mut(key) {
            client.request = request;
            client.user.c_ms = patience.0;
        }
        self.restart_timer_c(key);
        if !text.is_empty() && self.table.find_client(cancel_hash).is_none() {
            self.begin_client(cancel_hash, false, to, &text, user, None);
        }
        self.scratch = text;
    }

    /// Starts timer C of a branch anew (§16.7 step 2).
    pub(crate) fn restart_timer_c(&mut self, key: ClientKey) {
        let now = self.now.instant;
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        if let Some(timer) = client.user.timer_c.take() {
            self.wheel.cancel(timer);
        }
        let after = Millis(client.user.c_ms);
        client.user.timer_c = Some(self.wheel.start(now, after, Wake::Client(key, Timer::C)));
    }

    /// Stops timer C of a branch.
    pub(crate) fn stop_timer_c(&mut self, key: ClientKey) {
        if let Some(timer) = self.table.client_mut(key).and_then(|c| c.user.timer_c.take()) {
            self.wheel.cancel(timer);
        }
    }

    /// Responds to the stored request of a server transaction.
    pub(crate) fn respond(&mut self, server: ServerKey, status: Status<'_>) {
        self.respond_with(server, status, &[]);
    }

    /// Ends a server transaction without a final response (RFC 4320 §4.2), and reports its request as timed
    /// out.
    pub(super) fn time_out_silently(&mut self, server: ServerKey) {
        let Some(found) = self.table.live_mut(server) else {
            return;
        };
        let flow = found.source;
        let request = core::mem::take(&mut found.request);
        self.with_message(&request, |engine, message| {
            engine.note_refusal(message, flow, Some(server), Status::NEXT_HOP_SILENT);
        });
        self.server_event(server, ServerEvent::Abandon, &[]);
    }

    /// Like [`Engine::respond`], with header lines.
    pub(super) fn respond_with(&mut self, server: ServerKey, status: Status<'_>, extra: &[u8]) {
        let Some(found) = self.table.live_mut(server) else {
            return;
        };
        let flow = found.source;
        let request = core::mem::take(&mut found.request);
        self.with_message(&request, |engine, message| {
            engine.reply(message, flow, Some(server), &Reply { status, extra });
        });
    }
}
