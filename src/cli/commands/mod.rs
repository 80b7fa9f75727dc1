//! One file for each command: its arguments, whose doc comments are the help, and what it does.

pub mod backfill;
mod bulk;
pub mod bury;
pub mod check;
mod check_report;
pub mod completions;
pub mod errors;
pub mod explain;
mod explanation;
pub mod export;
pub mod import;
pub mod keys;
pub mod list;
pub mod man;
pub mod pause;
pub mod publish;
pub mod purge;
pub mod recover;
pub mod requeue;
pub mod resume;
pub mod run;
mod selection;
pub mod setup;
pub mod show;
pub mod stats;
