//! The real binary, in a sandbox: a fresh database and home directory for each test, and nothing of the surroundings.
//!
//! `dev/test` starts the database that these tests need, and tells them where it is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backfill;
mod config;
mod errors;
mod formats;
mod generated;
mod harness;
mod help;
mod keys;
mod large;
mod list;
mod pause;
mod publish;
mod purge;
mod recover;
mod repair;
mod run;
mod setup;
mod show;
mod stats;
mod stock;
mod terminal;
mod transactional;
mod transfer;
