//! One appender of a key at a time in this process.
//!
//! Appenders of one key exclude each other in the database anyway, by conflicts that throw away the loser's work. Those of
//! one process can as well wait for each other: then only those of other processes conflict.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// The locks of the keys that are being appended to.
#[derive(Debug, Default)]
pub(super) struct KeyLocks {
    locks: Mutex<HashMap<String, Weak<Lock>>>,
}

impl KeyLocks {
    /// Waits for all of these keys, always in the same order, so that no two appenders wait for each other.
    pub(super) async fn acquire(&self, keys: BTreeSet<&str>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.lock(key).lock_owned().await);
        }
        guards
    }

    fn lock(&self, key: &str) -> Arc<Lock> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() == locks.capacity() {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(Lock::default());
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn one_appender_of_a_key_at_a_time() {
        let locks = KeyLocks::default();
        let first = locks.acquire(["a", "b"].into()).await;
        assert!(locks.acquire(["b", "c"].into()).now_or_never().is_none());
        assert!(locks.acquire(["c"].into()).now_or_never().is_some());
        drop(first);
        assert!(locks.acquire(["b", "c"].into()).now_or_never().is_some());
    }

    #[tokio::test]
    async fn locks_that_nobody_holds_are_forgotten() {
        let locks = KeyLocks::default();
        for n in 0..10_000 {
            let _ = locks.acquire([n.to_string().as_str()].into()).await;
        }
        assert!(locks.locks.lock().unwrap().capacity() < 100);
    }
}
