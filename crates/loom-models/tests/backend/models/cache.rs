//! The cache of credentials: what was read before a change of the store is not served after it.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU8, Ordering::SeqCst};
use loom::thread;
use loom_models::explore;
use sip_core::query::Secrets;

use crate::subscribers::CredentialCache;

const LONG: Duration = Duration::from_secs(3_600);
const OLD: u8 = 1;
const NEW: u8 = 2;

/// A row of the store, and the cache before it.
struct Pair {
    row: AtomicU8,
    cache: CredentialCache,
}

fn pair() -> Arc<Pair> {
    Arc::new(Pair {
        row: AtomicU8::new(OLD),
        cache: CredentialCache::new(1, LONG, LONG),
    })
}

impl Pair {
    fn look_up(&self) {
        let begun = self.cache.moment();
        let secrets = Secrets {
            ha1_md5: Some([self.row.load(SeqCst); 16].into()),
            ..Secrets::default()
        };
        self.cache.keep((b"u", b"d", b"r"), begun, Some(secrets));
    }

    /// Which password the cache knows.
    fn known(&self) -> Option<u8> {
        let secrets = self.cache.get(b"u", b"d", b"r")??;
        secrets.ha1_md5.map(|hash| hash[0])
    }
}

/// A subscriber's password changes, and `tell` reports the change, while look-ups are under way.
fn change(tell: fn(&CredentialCache)) {
    explore(move || {
        let pair = pair();
        pair.look_up();
        let worker = thread::spawn({
            let pair = Arc::clone(&pair);
            move || pair.look_up()
        });
        let other = thread::spawn({
            let pair = Arc::clone(&pair);
            move || assert!([None, Some(OLD), Some(NEW)].contains(&pair.known()))
        });
        pair.row.store(NEW, SeqCst);
        tell(&pair.cache);
        assert_ne!(pair.known(), Some(OLD), "told already");
        worker.join().expect("it ran to its end");
        other.join().expect("it ran to its end");
        assert_ne!(pair.known(), Some(OLD), "nor does it come back");
        pair.look_up();
        assert_eq!(pair.known(), Some(NEW), "and the new one is kept");
    });
}

#[test]
fn a_forgotten_subscriber_is_not_known_by_an_old_password() {
    change(|cache| {
        cache.forget(b"u", b"d");
    });
}

#[test]
fn no_old_password_serves_after_the_store_changed() {
    change(CredentialCache::invalidate);
}
