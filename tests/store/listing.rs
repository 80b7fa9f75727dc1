//! Listing and counting: every filter, every order, every page.

use std::collections::BTreeSet;

use relayctl::model::{
    Cursor, Delivery, DeliveryId, ErrorGroupId, Failure, FailureKind, Filter, Lane, ListQuery, NewEvent,
    SortBy, Status, Timestamp, TypePattern,
};
use relayctl::store::{ErrorKind, Fenced, Outcome};

use crate::fixture::{
    Fixture, HANDLER, HOUR, LEASE, OTHER_HANDLER, SECOND, collect_until_error, delayed, event, keyed,
    sorted_by,
};

conformance![
    every_filter_alone_selects_what_it_says,
    every_pair_of_filters_selects_what_both_say,
    many_filters_at_once_select_what_all_say,
    every_order_is_kept_in_both_directions,
    a_limit_cuts_the_listing,
    pages_add_up_to_the_listing,
    pages_with_a_filter_add_up_to_the_listing,
    ties_of_one_time_are_paged_by_id,
    rows_that_stay_are_seen_once_while_others_come_and_go,
    a_cursor_outlives_its_delivery,
    a_cursor_of_another_order_is_refused,
    an_order_by_due_time_leaves_finished_ones_out,
    one_delivery_is_found_by_its_id,
    filters_are_values_and_never_operators,
    a_type_pattern_is_a_prefix_and_never_a_regular_expression,
    an_error_text_is_found_whatever_the_case_of_its_letters,
    a_cut_off_counts_what_has_not_changed_since,
    a_listing_without_history_has_the_latest_failure_alone,
    a_group_is_of_one_handler_and_of_what_has_failed,
    a_limit_counts_the_members_of_a_group_alone,
];

const ORDERS: [(SortBy, bool); 6] = [
    (SortBy::Created, false),
    (SortBy::Created, true),
    (SortBy::Updated, false),
    (SortBy::Updated, true),
    (SortBy::Due, false),
    (SortBy::Due, true),
];

/// Deliveries of all sorts: handlers, types, keys, statuses, errors and times, many of them alike.
pub async fn a_varied_population(fixture: &Fixture) {
    const TYPES: [&str; 4] = ["order.placed.v1", "order.cancelled.v1", "orders", "invoice.sent.v2"];
    const HANDLERS: [&str; 3] = [HANDLER, OTHER_HANDLER, "auditor"];
    for n in 0..60_usize {
        let mut event = NewEvent::new(TYPES[n % 4], n.into()).handler(HANDLERS[n % 3]);
        if n % 5 < 2 {
            event = event.key(["a", "b"][n % 2]);
        }
        if n % 7 == 0 {
            event = event.handler("late");
        }
        fixture.publish(delayed(event.id(format!("e-{n:02}")), fixture.later(SECOND * (n as u32 % 4)))).await;
        if n % 3 == 0 {
            fixture.clock.advance(SECOND);
        }
        if n % 10 == 9 {
            work_a_little(fixture, n).await;
        }
    }
}

async fn work_a_little(fixture: &Fixture, n: usize) {
    let claimed = fixture.claim_for(&[HANDLER, OTHER_HANDLER, "auditor"], 6).await;
    for (place, claimed) in claimed.iter().enumerate() {
        let failure = Failure::new(FailureKind::Failed, format!("Connection refused by host-{}", place % 2));
        let retry = Outcome::Reschedule { available_at: fixture.later(SECOND), failure: failure.clone() };
        let outcome = match (place + n / 10) % 6 {
            0 => Outcome::Complete,
            1 | 2 => Outcome::Bury { failure },
            3 => retry,
            4 => Outcome::ExtendLease { expires_at: fixture.later(HOUR) },
            _ => continue,
        };
        assert_eq!(fixture.settle(claimed, outcome).await, Fenced::Applied);
    }
}

/// The group of what `work_a_little` says went wrong.
fn refused(handler: &str) -> ErrorGroupId {
    ErrorGroupId::of(handler, "Connection refused by host-<n>")
}

/// One filter of each kind, each of which selects some of the varied population and not all.
fn single_filters(middle: Timestamp) -> Vec<Filter> {
    let none = Filter::default;
    vec![
        Filter { statuses: vec![Status::Pending], ..none() },
        Filter { statuses: vec![Status::Dead], ..none() },
        Filter { statuses: vec![Status::Completed, Status::Processing], ..none() },
        Filter { handler: Some(HANDLER.into()), ..none() },
        Filter { event_type: Some(TypePattern::Exact("orders".into())), ..none() },
        Filter { event_type: Some(TypePattern::Prefix("order.".into())), ..none() },
        Filter { event_type: Some(TypePattern::Prefix("order".into())), ..none() },
        Filter { key: Some("a".into()), ..none() },
        Filter { event: Some("e-07".into()), ..none() },
        Filter { error: Some("refused by HOST-1".into()), ..none() },
        Filter { groups: vec![refused(HANDLER)], ..none() },
        Filter { groups: vec![refused(OTHER_HANDLER), refused("auditor"), refused("nobody")], ..none() },
        Filter { since: Some(middle), ..none() },
        Filter { until: Some(middle), ..none() },
        Filter { finished_before: Some(middle), ..none() },
        Filter { min_attempts: Some(1), ..none() },
        Filter { min_attempts: Some(2), ..none() },
        Filter { lane: Some(Lane::Ready), ..none() },
        Filter { due_before: Some(middle), ..none() },
    ]
}

/// The conditions of both; where both have the same, the second's.
fn both(first: &Filter, second: &Filter) -> Filter {
    let (first, second) = (first.clone(), second.clone());
    Filter {
        statuses: if second.statuses.is_empty() { first.statuses } else { second.statuses },
        handler: second.handler.or(first.handler),
        event_type: second.event_type.or(first.event_type),
        key: second.key.or(first.key),
        event: second.event.or(first.event),
        error: second.error.or(first.error),
        groups: if second.groups.is_empty() { first.groups } else { second.groups },
        since: second.since.or(first.since),
        until: second.until.or(first.until),
        finished_before: second.finished_before.or(first.finished_before),
        min_attempts: second.min_attempts.or(first.min_attempts),
        lane: second.lane.or(first.lane),
        due_before: second.due_before.or(first.due_before),
    }
}

/// What a query has to list, by the model's own definition.
fn expected(all: &[Delivery], query: &ListQuery) -> Vec<DeliveryId> {
    let selected = all.iter().filter(|delivery| query.filter.matches(delivery));
    let mut places: Vec<_> =
        selected.filter_map(|delivery| Some((query.sort.time_of(delivery)?, delivery.id.clone()))).collect();
    places.sort();
    if query.descending {
        places.reverse();
    }
    places.into_iter().map(|(_, id)| id).collect()
}

fn ids_of(deliveries: &[Delivery]) -> Vec<DeliveryId> {
    deliveries.iter().map(|delivery| delivery.id.clone()).collect()
}

/// The filter lists what it should in this order, and counts what matches.
async fn assert_lists(fixture: &Fixture, all: &[Delivery], filter: &Filter, order: (SortBy, bool)) {
    let query = ListQuery { filter: filter.clone(), ..sorted_by(order.0, order.1) };
    assert_eq!(ids_of(&fixture.list(&query).await), expected(all, &query), "{query:?}");
}

async fn assert_counts(fixture: &Fixture, all: &[Delivery], filter: &Filter) {
    let matching = all.iter().filter(|delivery| filter.matches(delivery)).count();
    assert_eq!(fixture.count(filter.clone()).await, matching as u64, "{filter:?}");
}

/// The varied population, and an instant in the middle of its creation.
async fn populated(fixture: &Fixture) -> (Vec<Delivery>, Timestamp) {
    a_varied_population(fixture).await;
    let all = fixture.all().await;
    let middle = all[all.len() / 2].created_at;
    (all, middle)
}

async fn every_filter_alone_selects_what_it_says(fixture: &Fixture) {
    let (all, middle) = populated(fixture).await;
    for filter in single_filters(middle) {
        let matching = all.iter().filter(|delivery| filter.matches(delivery)).count();
        assert!((1..all.len()).contains(&matching), "{filter:?} selects {matching} and proves nothing");
        assert_counts(fixture, &all, &filter).await;
        for order in ORDERS {
            assert_lists(fixture, &all, &filter, order).await;
        }
    }
    assert_counts(fixture, &all, &Filter::default()).await;
}

async fn every_pair_of_filters_selects_what_both_say(fixture: &Fixture) {
    let (all, middle) = populated(fixture).await;
    let filters = single_filters(middle);
    for (first_place, first) in filters.iter().enumerate() {
        for (second_place, second) in filters.iter().enumerate().skip(first_place + 1) {
            let pair = both(first, second);
            assert_lists(fixture, &all, &pair, ORDERS[(first_place + second_place) % ORDERS.len()]).await;
            assert_counts(fixture, &all, &pair).await;
        }
    }
}

async fn many_filters_at_once_select_what_all_say(fixture: &Fixture) {
    let (all, middle) = populated(fixture).await;
    let filters = single_filters(middle);
    for start in 0..filters.len() {
        for width in [3, 4, 6] {
            let chosen = filters.iter().cycle().skip(start).step_by(2).take(width);
            let many = chosen.fold(Filter::default(), |many, one| both(&many, one));
            assert_lists(fixture, &all, &many, ORDERS[(start + width) % ORDERS.len()]).await;
            assert_counts(fixture, &all, &many).await;
        }
    }
}

async fn every_order_is_kept_in_both_directions(fixture: &Fixture) {
    let (all, _) = populated(fixture).await;
    for order in ORDERS {
        assert_lists(fixture, &all, &Filter::default(), order).await;
    }
}

async fn a_limit_cuts_the_listing(fixture: &Fixture) {
    fixture.publish_many(event(), 5).await;
    for (limit, listed) in [(0, 0), (1, 1), (4, 4), (5, 5), (6, 5), (u64::MAX, 5)] {
        let query = ListQuery { limit: Some(limit), ..ListQuery::default() };
        assert_eq!(fixture.list(&query).await.len(), listed, "limit {limit}");
    }
}

/// Walks a listing page by page; `between` may change the store after each page.
async fn walk(
    fixture: &Fixture,
    query: &ListQuery,
    page: u64,
    mut between: impl AsyncFnMut(&[Delivery]),
) -> Vec<DeliveryId> {
    let mut seen = Vec::new();
    let mut query = ListQuery { limit: Some(page), ..query.clone() };
    loop {
        let listed = fixture.list(&query).await;
        seen.extend(ids_of(&listed));
        assert!(seen.len() < 1_000, "the pages have no end");
        let Some(last) = listed.last() else { return seen };
        query.after = Cursor::at(last, query.sort, query.descending);
        between(&listed).await;
    }
}

async fn pages_add_up_to_the_listing(fixture: &Fixture) {
    let (all, _) = populated(fixture).await;
    for (sort, descending) in ORDERS {
        let query = sorted_by(sort, descending);
        for page in [1, 7, 100] {
            let seen = walk(fixture, &query, page, async |_: &[Delivery]| ()).await;
            assert_eq!(seen, expected(&all, &query), "{query:?} by {page}");
        }
    }
}

async fn pages_with_a_filter_add_up_to_the_listing(fixture: &Fixture) {
    let (all, middle) = populated(fixture).await;
    for (place, filter) in single_filters(middle).into_iter().enumerate() {
        let (sort, descending) = ORDERS[place % ORDERS.len()];
        let query = ListQuery { filter, ..sorted_by(sort, descending) };
        let seen = walk(fixture, &query, 3, async |_: &[Delivery]| ()).await;
        assert_eq!(seen, expected(&all, &query), "{query:?}");
    }
}

async fn ties_of_one_time_are_paged_by_id(fixture: &Fixture) {
    let mut published = fixture.publish_many(event(), 23).await;
    published.sort();
    for (sort, descending) in ORDERS {
        let query = sorted_by(sort, descending);
        let mut seen = walk(fixture, &query, 5, async |_: &[Delivery]| ()).await;
        if descending {
            seen.reverse();
        }
        assert_eq!(seen, published, "{query:?}");
    }
}

/// Half of the deliveries are dead and are purged one after the other while pages are turned, and others arrive.
async fn rows_that_stay_are_seen_once_while_others_come_and_go(fixture: &Fixture) {
    for (sort, descending) in [(SortBy::Created, false), (SortBy::Created, true), (SortBy::Updated, false)] {
        let (staying, going) = staying_and_going(fixture).await;
        let query = sorted_by(sort, descending);
        let come_and_go = async |_: &[Delivery]| {
            fixture.store.purge_batch(&fixture.purge_request(2)).await.unwrap();
            fixture.publish_many(event(), 2).await;
            fixture.publish(delayed(event(), fixture.later(HOUR))).await;
        };
        let mut turns = 0;
        let seen = walk(fixture, &query, 4, async |page: &[Delivery]| {
            turns += 1;
            if turns < 8 {
                come_and_go(page).await;
            }
        })
        .await;
        let distinct: BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "{query:?}");
        let stayed: Vec<_> = seen.into_iter().filter(|id| staying.contains(id)).collect();
        let in_order = expected(&fixture.all().await, &query);
        assert_eq!(stayed, in_order.into_iter().filter(|id| staying.contains(id)).collect::<Vec<_>>());
        let remaining = fixture.all().await.iter().filter(|delivery| going.contains(&delivery.id)).count();
        assert!(remaining < going.len(), "nothing went");
        forget_everything(fixture).await;
    }
}

/// Twelve pending deliveries, and twelve dead ones that can be purged, alternating in time.
async fn staying_and_going(fixture: &Fixture) -> (BTreeSet<DeliveryId>, BTreeSet<DeliveryId>) {
    let (mut staying, mut going) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..12 {
        staying.insert(fixture.publish(event()).await);
        let dead = fixture.publish(event()).await;
        fixture.bury(&dead).await;
        going.insert(dead);
        fixture.clock.advance(SECOND);
    }
    (staying, going)
}

async fn forget_everything(fixture: &Fixture) {
    fixture.clock.advance(HOUR);
    fixture.drain(100).await;
    fixture.clock.advance(SECOND);
    fixture.store.purge_batch(&fixture.purge_request(1_000)).await.unwrap();
    assert_eq!(fixture.all().await, []);
}

async fn a_cursor_outlives_its_delivery(fixture: &Fixture) {
    let mut published = fixture.publish_many(event(), 6).await;
    published.sort();
    let third = fixture.get(&published[2]).await;
    let after = Cursor::at(&third, SortBy::Created, false);
    fixture.bury(&published[2]).await;
    fixture.clock.advance(SECOND);
    fixture.store.purge_batch(&fixture.purge_request(10)).await.unwrap();
    assert_eq!(fixture.store.get(&published[2]).await.unwrap(), None);
    let rest = fixture.list(&ListQuery { after, ..ListQuery::default() }).await;
    assert_eq!(ids_of(&rest), published[3..]);
}

async fn a_cursor_of_another_order_is_refused(fixture: &Fixture) {
    fixture.publish(event()).await;
    let delivery = fixture.all().await.remove(0);
    let after = Cursor::at(&delivery, SortBy::Created, true);
    let query = ListQuery { after, ..ListQuery::default() };
    let (listed, error) = collect_until_error(&*fixture.store, &query).await;
    assert_eq!((listed, error.unwrap().kind()), (vec![], ErrorKind::Invalid));
}

async fn an_order_by_due_time_leaves_finished_ones_out(fixture: &Fixture) {
    fixture.publish_dead(event()).await;
    let waiting = fixture.publish(event()).await;
    assert_eq!(ids_of(&fixture.list(&sorted_by(SortBy::Due, false)).await), [waiting]);
    assert_eq!(fixture.list(&sorted_by(SortBy::Updated, false)).await.len(), 2);
}

async fn one_delivery_is_found_by_its_id(fixture: &Fixture) {
    let published = fixture.publish_many(event(), 3).await;
    assert_eq!(fixture.get(&published[1]).await.id, published[1]);
    for id in ["", "nothing", r#"{"$ne":null}"#, "null"] {
        assert_eq!(fixture.store.get(&id.into()).await.unwrap(), None);
    }
}

/// Texts that would mean something to a query language, each the handler, key, event id and type of one event.
const OPERATORS: [&str; 8] = [
    r#"{"$ne":null}"#,
    r#"{"$gt":""}"#,
    "$where",
    "function(){return true}",
    ".*",
    "' OR '1'='1",
    "%",
    "$handler",
];

async fn filters_are_values_and_never_operators(fixture: &Fixture) {
    fixture.publish(keyed("plain")).await;
    for text in OPERATORS {
        let literal = || Some(text.to_owned());
        let filters = [
            Filter { handler: literal(), ..Filter::default() },
            Filter { key: literal(), ..Filter::default() },
            Filter { event: Some(text.into()), ..Filter::default() },
            Filter { event_type: Some(TypePattern::Exact(text.into())), ..Filter::default() },
            Filter { event_type: Some(TypePattern::Prefix(text.into())), ..Filter::default() },
            Filter { error: literal(), ..Filter::default() },
        ];
        for filter in &filters {
            assert_eq!(fixture.count(filter.clone()).await, 0, "{filter:?}");
        }
        let literal_event = NewEvent::new(text, 1.into()).handler(text).key(text).id(text);
        let id = fixture.publish(literal_event).await;
        let repair = relayctl::store::Repair::Bury { reason: format!("because of {text}") };
        fixture.store.repair(&id, &repair, fixture.now()).await.unwrap();
        for filter in filters {
            let query = ListQuery { filter, ..ListQuery::default() };
            assert_eq!(ids_of(&fixture.list(&query).await), std::slice::from_ref(&id), "{query:?}");
        }
    }
}

async fn a_type_pattern_is_a_prefix_and_never_a_regular_expression(fixture: &Fixture) {
    let types = [
        "order.placed",
        "order-placed",
        "orders",
        "Order.placed",
        "order.\u{10FFFF}",
        "order.",
        "a.*b",
        "a.xb",
    ];
    for event_type in types {
        fixture.publish(NewEvent::new(event_type, 1.into()).handler(HANDLER)).await;
    }
    let listed = async |pattern: &str| {
        let filter = Filter { event_type: Some(pattern.parse().unwrap()), ..Filter::default() };
        let query = ListQuery { filter, ..ListQuery::default() };
        let types: BTreeSet<_> = fixture.list(&query).await.into_iter().map(|d| d.event_type).collect();
        types.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(listed("order.*").await, ["order.", "order.placed", "order.\u{10FFFF}"]);
    assert_eq!(listed("order.\u{10FFFF}*").await, ["order.\u{10FFFF}"]);
    assert_eq!(listed("a.*").await, ["a.*b", "a.xb"]);
    assert_eq!(listed(".*").await, Vec::<String>::new());
    assert_eq!(listed("order.").await, ["order."]);
    assert_eq!(listed("*").await.len(), types.len());
}

async fn an_error_text_is_found_whatever_the_case_of_its_letters(fixture: &Fixture) {
    let message = "Connection (refused) by [host].* $5 Éa\nsecond line";
    fixture.publish_dead(event()).await;
    let id = fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    let retry = Outcome::Bury { failure: Failure::new(FailureKind::Failed, message) };
    assert_eq!(fixture.settle(&claimed, retry).await, Fenced::Applied);
    let finds = async |text: &str| {
        let filter = Filter { error: Some(text.into()), ..Filter::default() };
        ids_of(&fixture.list(&ListQuery { filter, ..ListQuery::default() }).await) == [id.clone()]
    };
    for text in [
        "connection (REFUSED)",
        "[host].*",
        "$5",
        "Éa",
        "éA".to_uppercase().as_str(),
        "a\nsecond",
        "second line",
    ] {
        assert!(finds(text).await, "{text}");
    }
    for text in ["connection.*refused", "host]..", "^Connection", "line$", "éa"] {
        assert!(!finds(text).await, "{text}");
    }
}

async fn a_cut_off_counts_what_has_not_changed_since(fixture: &Fixture) {
    let published = fixture.publish_many(event(), 3).await;
    let selection = fixture.select(Filter::default());
    fixture.clock.advance(SECOND);
    fixture.publish(event()).await;
    assert_eq!(fixture.store.count(&selection).await.unwrap(), 3);
    fixture.bury(&published[0]).await;
    assert_eq!(fixture.store.count(&selection).await.unwrap(), 2);
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.count(Filter::default()).await, 4);
}

async fn a_listing_without_history_has_the_latest_failure_alone(fixture: &Fixture) {
    let failing = fixture.publish(event()).await;
    let fresh = fixture.publish(event()).await;
    for message in ["first", "second"] {
        let claimed = fixture.claim(1).await.remove(0);
        let failure = Failure::new(FailureKind::Failed, message);
        let retry = Outcome::Reschedule { available_at: fixture.now(), failure };
        assert_eq!(
            (claimed.delivery.id.clone(), fixture.settle(&claimed, retry).await),
            (failing.clone(), Fenced::Applied)
        );
    }
    for filter in
        [Filter::default(), Filter { event: Some(fixture.get(&failing).await.event_id), ..Filter::default() }]
    {
        let whole = fixture.list(&ListQuery { filter: filter.clone(), ..ListQuery::default() }).await;
        assert_eq!(whole[0].errors.len(), 2);
        let listed = fixture.list(&ListQuery { filter, without_history: true, ..ListQuery::default() }).await;
        let messages: Vec<_> = listed[0].errors.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(messages, ["second"]);
        let rest = Delivery { errors: whole[0].errors.clone(), ..listed[0].clone() };
        assert_eq!(rest, whole[0]);
    }
    assert_eq!(fixture.get(&fresh).await.errors, []);
}

async fn a_group_is_of_one_handler_and_of_what_has_failed(fixture: &Fixture) {
    fixture.publish(event()).await;
    let without_message = ErrorGroupId::of(HANDLER, "");
    let of_group = |group| Filter { groups: vec![group], ..Filter::default() };
    assert_eq!(fixture.count(of_group(without_message)).await, 0, "what never failed is in no group");
    let dead = fixture.publish_dead(event().handler(OTHER_HANDLER)).await;
    assert_eq!(fixture.count(of_group(ErrorGroupId::of(HANDLER, "the printer is on fire"))).await, 1);
    assert_eq!(fixture.count(of_group(ErrorGroupId::of(OTHER_HANDLER, "the printer is on fire"))).await, 0);
    let query = ListQuery {
        filter: of_group(ErrorGroupId::of(HANDLER, "the printer is on fire")),
        ..ListQuery::default()
    };
    assert_eq!(fixture.list(&query).await[0].id, dead);
}

/// Those of another group come first, and do not count.
async fn a_limit_counts_the_members_of_a_group_alone(fixture: &Fixture) {
    fixture.publish_many(event(), 6).await;
    let claimed = fixture.claim(6).await;
    for (claimed, message) in claimed.iter().zip(["other", "other", "line 1", "other", "line 2", "line 3"]) {
        let failure = Failure::new(FailureKind::Failed, message);
        assert_eq!(fixture.settle(claimed, Outcome::Bury { failure }).await, Fenced::Applied);
    }
    let filter = Filter { groups: vec![ErrorGroupId::of(HANDLER, "line <n>")], ..Filter::default() };
    let query = |limit, after| ListQuery {
        filter: filter.clone(),
        limit: Some(limit),
        after,
        ..ListQuery::default()
    };
    let page = fixture.list(&query(2, None)).await;
    let messages =
        |page: &[Delivery]| page.iter().filter_map(|one| one.last_error.clone()).collect::<Vec<_>>();
    assert_eq!(messages(&page), ["line 1", "line 2"]);
    let after = Cursor::at(&page[1], SortBy::Created, false);
    assert_eq!(messages(&fixture.list(&query(2, after)).await), ["line 3"]);
    assert_eq!(fixture.list(&query(0, None)).await, []);
}
