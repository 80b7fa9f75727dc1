//! Setting up, and what a store says of itself.

use crate::fixture::{Fixture, event};

conformance![
    setup_leaves_nothing_to_find,
    setup_again_creates_nothing,
    setup_keeps_what_is_stored,
    setups_race,
    the_location_is_for_people,
];

async fn setup_leaves_nothing_to_find(fixture: &Fixture) {
    assert_eq!(fixture.store.check_setup().await.unwrap(), []);
}

async fn setup_again_creates_nothing(fixture: &Fixture) {
    let first = fixture.store.setup().await.unwrap();
    assert_eq!(first.created, Vec::<String>::new());
    assert_eq!(fixture.store.setup().await.unwrap(), first);
}

async fn setup_keeps_what_is_stored(fixture: &Fixture) {
    fixture.publish(event().key("a")).await;
    let before = fixture.all().await;
    fixture.store.setup().await.unwrap();
    fixture.store.check_setup().await.unwrap();
    assert_eq!(fixture.all().await, before);
    assert_eq!(fixture.counter("a").await, Some(1));
}

async fn setups_race(fixture: &Fixture) {
    let setups = futures_util::future::join_all((0..4).map(|_| fixture.store.setup())).await;
    assert!(setups.into_iter().all(|report| report.unwrap().created.is_empty()));
    assert_eq!(fixture.store.check_setup().await.unwrap(), []);
}

async fn the_location_is_for_people(fixture: &Fixture) {
    let location = fixture.store.location();
    assert!(!location.is_empty() && !location.contains('@'), "{location}");
}
