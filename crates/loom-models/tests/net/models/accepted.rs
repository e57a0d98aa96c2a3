//! The table of connections that peers opened: the end of one leaves its successor alone.

use std::sync::Arc;

use loom::thread;
use loom_models::explore;
use sip_core::id::{ConnId, WorkerId};
use sip_core::transport::Transport;

use super::flow;
use crate::accepted::Accepted;

fn id(worker: u16, generation: u32) -> ConnId {
    ConnId {
        worker: WorkerId(worker),
        slot: 7,
        generation,
    }
}

/// A phone that connects again gets another worker, before the first has seen its end.
#[test]
fn the_end_of_a_connection_leaves_a_later_one() {
    explore(|| {
        let table = Arc::new(Accepted::default());
        let peer = flow(40_000).remote;
        let (old, new) = (id(0, 1), id(1, 1));
        table.insert(Transport::Tcp, peer, old);
        let ending = thread::spawn({
            let table = Arc::clone(&table);
            move || table.remove(Transport::Tcp, peer, old)
        });
        let accepting = thread::spawn({
            let table = Arc::clone(&table);
            move || {
                table.insert(Transport::Tcp, peer, new);
                // Messages to the phone go there from now on.
                assert_eq!(table.find(Transport::Tcp, peer), Some(new));
            }
        });
        let seen = table.find(Transport::Tcp, peer);
        assert!([None, Some(old), Some(new)].contains(&seen));
        ending.join().expect("it ran to its end");
        accepting.join().expect("it ran to its end");
        assert_eq!(table.find(Transport::Tcp, peer), Some(new));
        table.remove(Transport::Tcp, peer, new);
        assert_eq!(table.len(), 0);
    });
}

/// A slot used again at the same worker, with a late report of its first user's end.
#[test]
fn the_end_of_a_connection_that_has_a_successor_in_its_slot() {
    explore(|| {
        let table = Arc::new(Accepted::default());
        let peer = flow(40_000).remote;
        table.insert(Transport::Tcp, peer, id(0, 1));
        let threads: Vec<_> = [id(0, 1), id(0, 2)]
            .map(|ended| {
                let table = Arc::clone(&table);
                thread::spawn(move || table.remove(Transport::Tcp, peer, ended))
            })
            .into();
        table.insert(Transport::Tcp, peer, id(0, 3));
        for thread in threads {
            thread.join().expect("it ran to its end");
        }
        assert_eq!(table.find(Transport::Tcp, peer), Some(id(0, 3)));
    });
}
