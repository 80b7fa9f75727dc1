//! Random sequences of operations with a clock that is moved by hand.
//!
//! The in-memory store is held to a claim oracle that is written straight from the rules, and to what has to be true
//! of any state. MongoDB is held to the in-memory store: every answer, and all that is stored in the end. Parking is
//! left out of the comparison, as a store may park or not; in its place, whatever is unfinished in the end must run to
//! completion in the order of its keys.
//!
//! The seed is fixed; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` try others, and more.

mod oracle;
mod steps;
mod subject;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::backend::Kind;
use steps::{Pilot, Step, sequence_of_steps};
use subject::Subject;

#[test]
fn memory_obeys_the_rules() {
    check(400, 60, async |steps| {
        let memory = Subject::open(Kind::Memory).await;
        let mut pilot = Pilot::default();
        for step in steps {
            oracle::perform_and_judge(step, &mut pilot, &memory).await;
        }
        memory.assert_runs_to_completion(&pilot).await;
    });
}

#[test]
fn mongo_agrees_with_memory() {
    check(30, 40, async |steps| {
        let mongo = Subject::open(Kind::Mongo).await;
        let verdict = AssertUnwindSafe(compare(steps, &mongo)).catch_unwind().await;
        mongo.tear_down().await;
        verdict.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

async fn compare(steps: &[Step], mongo: &Subject) {
    let memory = Subject::open(Kind::Memory).await;
    let mut pilot = Pilot::default();
    for (place, step) in steps.iter().enumerate() {
        let (expected, answer) = (pilot.perform(step, &memory).await, pilot.perform(step, mongo).await);
        assert_eq!(answer, expected, "step {place} of MongoDB, and of memory: {step:?}");
        pilot.learn(step, &expected);
    }
    assert_eq!(mongo.everything(&pilot).await, memory.everything(&pilot).await, "in the end");
    let ran = mongo.assert_runs_to_completion(&pilot).await;
    assert_eq!(ran, memory.assert_runs_to_completion(&pilot).await);
}

/// Runs `test` on so many sequences of up to `length` steps, and on a failure finds a short one that fails.
fn check(cases: u32, length: usize, test: impl AsyncFn(&[Step])) {
    const SEED: u64 = 20_261_130;
    const SHRINK_STEPS: u32 = 2_000;
    let mut config = Config { failure_persistence: None, ..Config::default() };
    let is_given = |variable| std::env::var_os(variable).is_some();
    if !is_given("PROPTEST_CASES") {
        config.cases = cases;
    }
    if !is_given("PROPTEST_MAX_SHRINK_ITERS") {
        config.max_shrink_iters = SHRINK_STEPS;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = TestRunner::new(config).run(&sequence_of_steps(length), |steps| {
        runtime.block_on(test(&steps));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
