//! What only the MongoDB store has: documents of other clients, settings of the URL, plans of the queries, the server's
//! own ways to fail. The contract that it shares with the other stores is held in `tests/store`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod connecting;
mod documents;
mod durability;
mod failover;
mod fixture;
mod handlers;
mod interleaving;
mod killed;
mod operations;
mod outages;
mod plans;
mod races;
mod schema;
mod transfer;
mod wake_up;
