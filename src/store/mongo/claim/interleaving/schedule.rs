//! Puts the steps of actors into an order that a seed decides.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::future::LocalBoxFuture;

/// Pending for so many polls: whoever polls decides who has a turn meanwhile.
pub(super) struct Pause(pub(super) u8);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        match self.0 {
            0 => Poll::Ready(()),
            _ => {
                self.0 -= 1;
                Poll::Pending
            }
        }
    }
}

/// What happened, for the replay of a schedule that failed. Silent unless asked for.
#[derive(Clone, Default)]
pub(super) struct Trace {
    steps: Option<Rc<RefCell<Vec<String>>>>,
    actor: Rc<Cell<usize>>,
}

impl Trace {
    pub(super) fn kept() -> Self {
        Trace { steps: Some(Rc::default()), ..Trace::default() }
    }

    pub(super) fn note(&self, step: impl FnOnce() -> String) {
        if let Some(steps) = &self.steps {
            steps.borrow_mut().push(format!("{:>3} {}", self.actor.get(), step()));
        }
    }

    /// Whose turn it is.
    pub(super) fn turn_of(&self, actor: usize) {
        self.actor.set(actor);
    }

    pub(super) fn text(&self) -> String {
        self.steps.as_ref().map(|steps| steps.borrow().join("\n")).unwrap_or_default()
    }
}

/// Actors in progress. They advance when they are polled here, and at no other time.
#[derive(Default)]
pub(super) struct Actors<'s> {
    running: Vec<(usize, LocalBoxFuture<'s, ()>)>,
    started: usize,
}

impl<'s> Actors<'s> {
    pub(super) fn start(&mut self, actor: impl Future<Output = ()> + 's) {
        self.started += 1;
        self.running.push((self.started, Box::pin(actor)));
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// One gets as far as its next pause.
    pub(super) fn step(&mut self, place: usize, trace: &Trace) {
        let (name, actor) = &mut self.running[place];
        trace.turn_of(*name);
        if poll(actor).is_ready() {
            drop(self.running.swap_remove(place));
        }
    }

    /// One stops where it is, between two round trips or within one.
    pub(super) fn crash(&mut self, place: usize, trace: &Trace) {
        let (name, actor) = self.running.swap_remove(place);
        trace.turn_of(name);
        trace.note(|| "crashes".to_owned());
        drop(actor);
    }
}

fn poll<T>(future: &mut LocalBoxFuture<'_, T>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs one actor to its end, with nobody in between.
pub(super) fn alone<T>(actor: impl Future<Output = T>) -> T {
    alone_but(usize::MAX, || {}, actor)
}

/// The same, but that something else happens after so many steps.
pub(super) fn alone_but<T>(steps: usize, happen: impl Fn(), actor: impl Future<Output = T>) -> T {
    let mut actor: LocalBoxFuture<'_, T> = Box::pin(actor);
    for step in 0..10_000 {
        if step == steps {
            happen();
        }
        if let Poll::Ready(result) = poll(&mut actor) {
            return result;
        }
    }
    panic!("an actor that is alone comes to no end");
}
