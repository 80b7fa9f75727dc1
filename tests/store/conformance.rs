//! From a list of cases to tests.

/// Makes a test of each case for each backend. The runtime has two threads, so that what a store spawns runs beside
/// the case.
macro_rules! conformance {
    (@backend $module:ident, $backend:expr, $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::fixture::run($backend, super::$case).await;
                }
            )+
        }
    };
    ($($case:ident),+ $(,)?) => {
        conformance!(@backend memory, crate::backend::Kind::Memory, $($case),+);
        conformance!(@backend mongo, crate::backend::Kind::Mongo, $($case),+);
    };
}
