//! A worker that one can leave alone: what it has to survive, tried with the real binary on a real server.

mod processes;
pub mod server;
mod trace;
mod worker;

mod drain;
mod examples;
mod failover;
mod flood;
mod killed;
mod many;
mod outage;
mod pid_one;
mod slow;
mod stopped;
