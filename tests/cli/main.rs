//! The real binary, in a sandbox: a fresh database and home directory for each test, and nothing of the surroundings.
//!
//! `dev/test` starts the database that these tests need, and tells them where it is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backfill;
mod check;
mod clock;
mod config;
mod cut_short;
mod error_groups;
mod errors;
mod examples;
mod explain;
mod formats;
mod generated;
mod harness;
mod help;
mod keys;
mod large;
mod left_alone;
mod lines;
mod list;
mod metrics;
mod pause;
mod publish;
mod purge;
mod recover;
mod reload;
mod repair;
mod run;
mod setup;
mod show;
mod stats;
mod status_line;
mod stock;
mod supervisor;
mod terminal;
mod transactional;
mod transfer;
mod widths;
mod zones;
