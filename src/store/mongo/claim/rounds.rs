//! The round trips that a claim is made of.

use std::collections::{HashMap, HashSet};

use mongodb::bson::Bson;

use super::candidate::{Candidate, Grant, HandlerKey, Pin, Place};
use crate::model::{Delivery, LeaseToken, Timestamp};
use crate::store::Result;

/// A stretch of the claim scan to read.
#[derive(Debug)]
pub(super) struct PageRequest<'a> {
    pub(super) handlers: &'a [String],
    pub(super) now: Timestamp,
    /// The place behind which it begins.
    pub(super) after: Option<&'a Place>,
    pub(super) size: usize,
}

/// A stretch of the claim scan.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) candidates: Vec<Candidate>,
    /// Whether more may follow.
    pub(super) is_full: bool,
}

/// The unfinished delivery of the lowest sequence of a key.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) sequence: Bson,
}

/// A head that is due.
#[derive(Clone, Debug)]
pub(super) struct DueHead {
    pub(super) place: Place,
    pub(super) key: String,
}

/// Leases to be written: all of one token, in groups that were alike.
#[derive(Debug)]
pub(super) struct Take<'a> {
    pub(super) groups: Vec<(Pin, Vec<&'a Candidate>)>,
    pub(super) token: &'a LeaseToken,
    pub(super) grant: Grant<'a>,
}

/// One method is one round trip, or several side by side. The algorithm is written in terms of these, so that a test can
/// put the steps of many claims into any order, and break off between any two.
///
/// Each read sees all writes that were acknowledged before it began; each write is evaluated for each document in one go.
pub(super) trait Rounds {
    /// Due deliveries in lane ready, the oldest first. Documents that make no sense are left out.
    async fn page(&self, request: PageRequest<'_>) -> Result<Page>;

    /// The oldest due deliveries without a key.
    async fn unkeyed(&self, handlers: &[String], now: Timestamp, limit: usize) -> Result<Vec<Candidate>>;

    /// The heads of all keys of a handler that are due at `until`, in any order.
    async fn due_heads(&self, handler: &str, until: Timestamp) -> Result<Vec<DueHead>>;

    /// The keys that have parked deliveries, with the lowest sequence among these.
    async fn lowest_parked(&self, handlers: &[String]) -> Result<Vec<(HandlerKey, Bson)>>;

    /// The head of each key.
    async fn heads(&self, keys: &HashSet<HandlerKey>) -> Result<HashMap<HandlerKey, Head>>;

    /// The head of each key, whole, whether it is due or not.
    async fn whole_heads(&self, keys: &HashSet<HandlerKey>) -> Result<Vec<Candidate>>;

    /// The deliveries of each key that run under a live lease.
    async fn live(
        &self,
        keys: &HashSet<HandlerKey>,
        now: Timestamp,
    ) -> Result<HashMap<HandlerKey, Vec<String>>>;

    /// Those of these deliveries that are due.
    async fn candidates(&self, ids: Vec<String>, now: Timestamp) -> Result<Vec<Candidate>>;

    /// Writes leases, and returns how many were written. After an error that is unknown.
    async fn take(&self, take: Take<'_>) -> Result<u64>;

    /// Those of these deliveries that hold the token. One that makes no sense is left out.
    async fn won(&self, ids: &[&str], token: &LeaseToken) -> Result<Vec<Delivery>>;

    /// Puts deliveries back as they were read, where they still hold the token.
    async fn put_back(&self, candidates: &[&Candidate], token: &LeaseToken) -> Result<()>;

    /// Parks those of these deliveries that are pending.
    async fn park(&self, ids: &[String]) -> Result<()>;
}
