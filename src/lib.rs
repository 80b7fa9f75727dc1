//! relayctl: the operator's command line, admin tool and worker for a transactional outbox.
//!
//! A service writes an event in the same database transaction as its business data. Each event becomes one *delivery*
//! per handler; workers lease deliveries, run the handler, and record the outcome.
//!
//! # The rooms
//!
//! | room | what it holds | may use |
//! |---|---|---|
//! | [`model`] | events, deliveries, transitions, retry policies, filters: pure | nothing |
//! | [`clock`] | the one place that reads wall time; the clock that the store's server sets | `model` |
//! | [`store`] | the [`Store`](store::Store) contract and its backends | `model` |
//! | [`ops`] | what an operator means: plan and apply | `model`, `clock`, `store` |
//! | [`handler`] | the [`Handler`](handler::Handler) trait and shell commands | `model`, `clock`, `store`'s `Transaction` and what it does |
//! | [`dispatch`] | claim, execute, settle, renew, drain | `model`, `clock`, `store`, `handler` |
//! | [`monitor`] | a worker seen from outside: metrics, health, readiness | `model`, `clock`, `store`, `ops`, `dispatch` |
//! | [`config`] | discovery, profiles, resolution with origin, redaction | `model` |
//! | [`cli`] | the only room that prints, prompts or exits | all |
//!
//! A test in `tests/house` keeps these directions.

pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod handler;
pub mod model;
pub mod monitor;
pub mod ops;
pub mod store;
