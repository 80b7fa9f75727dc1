//! Hints that something may be due.

use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use relayctl::store::{Outcome, Result};

use crate::fixture::{Fixture, HANDLER, SECOND, bury, event, failure};

conformance![
    what_was_there_before_is_hinted_at_by_the_first_item,
    what_makes_a_delivery_wait_is_followed_by_an_item,
    a_transaction_is_followed_by_an_item_when_it_commits,
];

type WakeUps = BoxStream<'static, Result<()>>;

async fn next(wake_ups: &mut WakeUps) {
    let item = tokio::time::timeout(Duration::from_secs(60), wake_ups.next()).await;
    item.expect("an item within a minute").expect("the stream goes on").expect("no error");
}

async fn listening(fixture: &Fixture) -> WakeUps {
    let mut wake_ups = fixture.store.wake_ups(&[HANDLER.to_owned()]).expect("both stores have them");
    next(&mut wake_ups).await;
    wake_ups
}

async fn what_was_there_before_is_hinted_at_by_the_first_item(fixture: &Fixture) {
    fixture.publish(event()).await;
    let _listening = listening(fixture).await;
    fixture.complete(&fixture.claim_only().await).await;
}

async fn what_makes_a_delivery_wait_is_followed_by_an_item(fixture: &Fixture) {
    let mut wake_ups = listening(fixture).await;
    let id = fixture.publish(event()).await;
    next(&mut wake_ups).await;
    let retry = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
    for outcome in [Outcome::Release, retry] {
        let _ = fixture.settle(&fixture.claim_only().await, outcome).await;
        next(&mut wake_ups).await;
    }
    fixture.claim_only().await;
    fixture.clock.advance(100 * SECOND);
    assert_eq!(fixture.store.recover(&[], fixture.now()).await.unwrap(), 1);
    next(&mut wake_ups).await;
    let _ = fixture.settle(&fixture.claim_only().await, bury()).await;
    fixture.requeue(&id).await;
    next(&mut wake_ups).await;
}

async fn a_transaction_is_followed_by_an_item_when_it_commits(fixture: &Fixture) {
    let mut wake_ups = listening(fixture).await;
    let mut open = fixture.begin().await;
    open.transaction().append(&[event()], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    next(&mut wake_ups).await;
    fixture.claim_only().await;
}
