//! The worker against the memory store and real children.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ahead;
mod children;
mod concurrency;
mod drain;
mod faulty_store;
mod gates;
mod groups;
mod leases;
mod lines;
mod monitor;
mod outages;
mod outcomes;
mod preparing;
mod pulse;
mod resubscribing;
mod settling;
mod stop_when;
mod support;
mod time;
mod transactional;
mod wake_ups;
