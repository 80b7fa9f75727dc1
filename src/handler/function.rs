//! Closures as handlers.

use async_trait::async_trait;

use super::{Handler, HandlerContext, Outcome};
use crate::model::Envelope;

/// A closure that handles deliveries; made by [`handler_fn`].
#[derive(Clone, Copy, Debug)]
pub struct FnHandler<F>(F);

/// Makes a handler of an async closure, which gets a copy of the envelope.
///
/// ```
/// use relayctl::handler::{Outcome, handler_fn};
///
/// let handler = handler_fn(|envelope| async move {
///     match envelope.payload["total"].as_i64() {
///         Some(_total) => Outcome::Succeeded,
///         None => Outcome::rejected("the order has no total"),
///     }
/// });
/// # let _: &dyn relayctl::handler::Handler = &handler;
/// ```
///
/// It may also return a `Result<(), E>`, of which every error is tried again.
pub fn handler_fn<F, Fut, T>(function: F) -> FnHandler<F>
where
    F: Fn(Envelope) -> Fut + Send + Sync,
    Fut: Future<Output = T> + Send,
    T: Into<Outcome>,
{
    FnHandler(function)
}

#[async_trait]
impl<F, Fut, T> Handler for FnHandler<F>
where
    F: Fn(Envelope) -> Fut + Send + Sync,
    Fut: Future<Output = T> + Send,
    T: Into<Outcome>,
{
    async fn handle(&self, envelope: &Envelope, _context: &HandlerContext) -> Outcome {
        (self.0)(envelope.clone()).await.into()
    }
}
