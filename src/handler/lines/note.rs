//! What is worth telling about the children besides the outcomes of deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

/// Something about a child, for the worker's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildNote {
    /// The handler that the child works for.
    pub handler: String,
    /// The child's process id.
    pub pid: u32,
    /// What there is to tell.
    pub what: ChildNews,
}

/// What there is to tell about a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildNews {
    /// It wrote a line to stderr; a long one is cut.
    Said(String),
    /// So many lines of any child were not told, as they came faster than they were read.
    LeftOut(u64),
    /// It was found dead or in disorder between two deliveries, and is replaced.
    Replaced(String),
}

/// Tells notes to whoever listens. Never waits: a child that talks without end holds up nobody.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(Option<Listener>);

#[derive(Clone, Debug)]
struct Listener {
    sender: mpsc::Sender<ChildNote>,
    left_out: Arc<AtomicU64>,
}

impl Notes {
    pub(super) fn to(sender: mpsc::Sender<ChildNote>) -> Self {
        Notes(Some(Listener { sender, left_out: Arc::default() }))
    }

    pub(super) fn tell(&self, handler: &str, pid: u32, what: ChildNews) {
        let Some(Listener { sender, left_out }) = &self.0 else { return };
        let note = |what| ChildNote { handler: handler.to_owned(), pid, what };
        let missed = left_out.swap(0, Ordering::Relaxed);
        if missed > 0 && sender.try_send(note(ChildNews::LeftOut(missed))).is_err() {
            left_out.fetch_add(missed, Ordering::Relaxed);
        }
        if sender.try_send(note(what)).is_err() {
            left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_counted() {
        let (sender, mut receiver) = mpsc::channel(2);
        let notes = Notes::to(sender);
        let mut told = Vec::new();
        for word in ["a", "b", "c", "d"] {
            notes.tell("h", 7, ChildNews::Said(word.into()));
        }
        while let Ok(note) = receiver.try_recv() {
            told.push(note.what);
        }
        notes.tell("h", 7, ChildNews::Said("e".into()));
        while let Ok(note) = receiver.try_recv() {
            told.push(note.what);
        }
        let said = |word: &str| ChildNews::Said(word.into());
        assert_eq!(told, [said("a"), said("b"), ChildNews::LeftOut(2), said("e")]);
        Notes::default().tell("h", 7, said("f"));
    }
}
