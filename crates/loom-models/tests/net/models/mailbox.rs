//! The mailbox: no wake-up is lost, nothing is lost or doubled, order is kept, bounds hold.

use loom::thread;
use loom_models::explore;
use sip_core::id::QueryId;
use sip_core::query::QueryResult;

use super::{flow, turn};
use crate::mailbox::{Block, Control, Inbox, Item, MailboxSender, Refused, Task, mailbox};
use crate::settings::Settings;

fn settings(messages: usize, items: usize) -> Settings {
    Settings {
        mailbox_messages: messages,
        mailbox_items: items,
        ..Settings::default()
    }
}

fn post_message(sender: &MailboxSender, port: u16) -> Result<(), Refused> {
    let mut block = Block::default();
    block.push(Task::Handle, flow(port), &port.to_ne_bytes());
    let posted = sender.post_block(&mut block);
    // Whole or not at all.
    assert_eq!(block.len(), usize::from(posted.is_err()));
    posted
}

fn result(slot: u32) -> Item {
    let id = QueryId { slot, generation: 1 };
    let result = QueryResult::Saved(Ok(()));
    Item::Result { id, result }
}

/// The ports of the messages, in their order.
fn ports(inbox: &Inbox) -> Vec<u16> {
    let entries = inbox.blocks.iter().flat_map(Block::iter);
    entries
        .map(|(entry, bytes)| {
            let port = entry.flow.remote.port();
            assert_eq!(bytes, port.to_ne_bytes(), "its own bytes");
            port
        })
        .collect()
}

fn slots(inbox: &Inbox) -> Vec<u32> {
    let items = inbox.items.iter();
    items
        .map(|item| match item {
            Item::Result { id, .. } => id.slot,
            Item::Control(_) => u32::MAX,
        })
        .collect()
}

#[test]
fn a_sleeping_worker_gets_every_message_in_each_senders_order() {
    explore(|| {
        let (sender, receiver) = mailbox(&settings(8, 8)).expect("no descriptor");
        let other = sender.clone();
        let messages = thread::spawn(move || {
            for port in [1, 2] {
                post_message(&sender, port).expect("there is room");
            }
        });
        let order = thread::spawn(move || other.post(Item::Control(Control::Stop)).is_ok());
        let (mut inbox, mut got, mut stop) = (Inbox::default(), vec![], false);
        while got.len() < 2 || !stop {
            turn(&receiver, &mut inbox);
            got.extend(ports(&inbox));
            stop |= !inbox.items.is_empty();
        }
        assert_eq!(got, [1, 2]);
        messages.join().expect("it ran to its end");
        assert!(order.join().expect("it ran to its end"));
        assert!(!receiver.take(&mut inbox), "nothing comes twice");
    });
}

#[test]
fn results_wake_in_their_order() {
    explore(|| {
        let (sender, receiver) = mailbox(&settings(8, 8)).expect("no descriptor");
        let store = thread::spawn(move || {
            sender.post_all(&mut vec![result(0), result(1)]).is_ok() && sender.post(result(2)).is_ok()
        });
        let (mut inbox, mut got) = (Inbox::default(), vec![]);
        while got.len() < 3 {
            turn(&receiver, &mut inbox);
            got.extend(slots(&inbox));
        }
        assert_eq!(got, [0, 1, 2]);
        assert!(store.join().expect("it ran to its end"));
    });
}

#[test]
fn what_is_refused_at_the_bound_stays_and_the_rest_arrives() {
    explore(|| {
        let (sender, receiver) = mailbox(&settings(1, 1)).expect("no descriptor");
        let senders: Vec<_> = [1u16, 2]
            .map(|port| {
                let sender = sender.clone();
                thread::spawn(move || post_message(&sender, port).is_ok())
            })
            .into();
        let mut inbox = Inbox::default();
        let mut got = vec![];
        receiver.take(&mut inbox);
        assert!(inbox.blocks.len() <= 1, "the bound holds");
        got.extend(ports(&inbox));
        let accepted = senders
            .into_iter()
            .map(|sender| sender.join().expect("it ran to its end"))
            .collect::<Vec<_>>();
        receiver.take(&mut inbox);
        assert!(inbox.blocks.len() <= 1, "the bound holds");
        got.extend(ports(&inbox));
        got.sort_unstable();
        let expected: Vec<u16> = [1, 2]
            .into_iter()
            .zip(&accepted)
            .filter_map(|(port, accepted)| accepted.then_some(port))
            .collect();
        assert_eq!(got, expected, "what was accepted, once");
        assert!(!got.is_empty(), "there was room for one");
        assert_eq!(post_message(&sender, 3), Ok(()), "there is room again");
    });
}

#[test]
fn items_beyond_the_bound_stay_with_their_sender() {
    explore(|| {
        let (sender, receiver) = mailbox(&settings(1, 1)).expect("no descriptor");
        let store = thread::spawn(move || {
            let mut items = vec![result(0), result(1)];
            let done = sender.post_all(&mut items);
            assert_eq!(done.is_err(), !items.is_empty());
            items.len()
        });
        let mut inbox = Inbox::default();
        receiver.take(&mut inbox);
        let mut got = slots(&inbox);
        let left = store.join().expect("it ran to its end");
        receiver.take(&mut inbox);
        got.extend(slots(&inbox));
        assert_eq!((left, got), (1, vec![0]));
    });
}

#[test]
fn a_mailbox_whose_worker_has_gone_takes_nothing() {
    explore(|| {
        let (sender, receiver) = mailbox(&settings(8, 8)).expect("no descriptor");
        let late = sender.clone();
        let posting = thread::spawn(move || post_message(&sender, 1).is_ok());
        let going = thread::spawn(move || drop(receiver));
        going.join().expect("it ran to its end");
        assert!(late.post(result(0)).is_err());
        assert_eq!(post_message(&late, 2), Err(Refused));
        // Before the worker went, or not at all; either way without a panic.
        posting.join().expect("it ran to its end");
        assert_eq!(late.queued(), (0, 0, 0), "nothing is kept for nobody");
    });
}
