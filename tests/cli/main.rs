//! The real binary, as operators, cron and scripts use it: what it prints, how it ends, and what it did to the store.

mod keys;
mod publish;
mod purge;
mod recover;
mod repair;
mod shop;
