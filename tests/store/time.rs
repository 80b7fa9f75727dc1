//! What time it is at the store's server.

use relayctl::model::Timestamp;

use crate::fixture::{Fixture, HOUR, SECOND, event, ids};

conformance![a_server_that_has_a_clock_tells_a_time_that_goes_on, nothing_rests_on_the_clock_of_the_server,];

async fn server_time(fixture: &Fixture) -> Option<Timestamp> {
    fixture.store.server_time().await.unwrap()
}

async fn a_server_that_has_a_clock_tells_a_time_that_goes_on(fixture: &Fixture) {
    let first = server_time(fixture).await;
    let goes_on = async || match (first, server_time(fixture).await) {
        (Some(before), Some(after)) => after > before,
        (before, after) => before == after,
    };
    let wait = async {
        while !goes_on().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(60 * SECOND, wait).await.expect("the time goes on, or there is none");
}

/// The clock of these cases shows another time than any server.
async fn nothing_rests_on_the_clock_of_the_server(fixture: &Fixture) {
    let Some(there) = server_time(fixture).await else { return };
    let apart = fixture.now().since(there).max(there.since(fixture.now()));
    assert!(apart > HOUR, "{there} is not far from {}", fixture.now());
    let id = fixture.publish(event()).await;
    let claimed = fixture.claim(1).await;
    assert_eq!(claimed[0].delivery.id, id);
    assert_eq!(claimed[0].delivery.created_at, fixture.now());
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.claim(1).await, []);
    assert_eq!(fixture.store.recover(&[], fixture.now()).await.unwrap(), 0);
    fixture.clock.advance(HOUR);
    assert_eq!(ids(&fixture.claim(1).await), [id]);
}
