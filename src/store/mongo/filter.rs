//! Filters as query documents. Every value that a user gave stands where only a value can stand.

use mongodb::bson::{Bson, Document, doc};

use super::documents::{date, integer};
use crate::model::{Filter, Lane, Selection, Status, TypePattern};

/// The conditions of a filter. Its statuses are always listed, as the index on status has to be bounded.
pub(super) fn conditions(filter: &Filter) -> Document {
    let mut and: Vec<Document> = vec![doc! { "status": { "$in": status_words(&filter.statuses) } }];
    and.extend(filter.handler.as_ref().map(|handler| doc! { "handler": { "$eq": handler } }));
    and.extend(filter.event_type.as_ref().and_then(type_condition));
    and.extend(filter.key.as_ref().map(|key| doc! { "key": { "$eq": key } }));
    and.extend(filter.event.as_ref().map(|event| doc! { "eventId": { "$eq": event.as_str() } }));
    and.extend(filter.error.as_ref().map(|text| mentions(text)));
    and.extend((!filter.groups.is_empty()).then(has_failed));
    and.extend(filter.since.map(|since| doc! { "createdAt": { "$gte": date(since) } }));
    and.extend(filter.until.map(|until| doc! { "createdAt": { "$lt": date(until) } }));
    and.extend(filter.finished_before.map(|time| {
        let completed = doc! { "status": "completed", "completedAt": { "$lt": date(time) } };
        let undated = doc! { "status": "completed", "completedAt": null, "updatedAt": { "$lt": date(time) } };
        let dead = doc! { "status": "dead", "updatedAt": { "$lt": date(time) } };
        doc! { "$or": [completed, undated, dead] }
    }));
    and.extend(filter.min_attempts.filter(|&attempts| attempts > 0).map(|attempts| {
        doc! { "attempts": { "$gte": integer(i64::from(attempts)) } }
    }));
    and.extend(filter.lane.map(|lane| {
        doc! { "lane": { "$in": lane_words(lane) }, "status": { "$in": ["pending", "processing"] } }
    }));
    and.extend(filter.due_before.map(|time| doc! { "dueAt": { "$lt": date(time) } }));
    doc! { "$and": and }
}

/// The conditions of a selection.
pub(super) fn selection(selection: &Selection) -> Document {
    let cutoff = date(selection.cutoff);
    let unchanged = doc! { "$or": [{ "updatedAt": { "$lte": cutoff } }, { "updatedAt": null }] };
    doc! { "$and": [conditions(&selection.filter), unchanged] }
}

/// What can belong to a group of errors. Which one it belongs to no query can say: see [`groups`](super::groups).
fn has_failed() -> Document {
    doc! { "$or": [{ "lastError": { "$ne": null } }, { "status": "dead" }] }
}

pub(super) fn status_words(statuses: &[Status]) -> Vec<&'static str> {
    let statuses = if statuses.is_empty() { &Status::ALL } else { statuses };
    statuses.iter().map(|status| status.as_str()).collect()
}

/// Where a document names no lane, it is in lane ready.
fn lane_words(lane: Lane) -> Vec<Bson> {
    match lane {
        Lane::Ready => vec![Bson::from(lane.as_str()), Bson::Null],
        Lane::Parked => vec![Bson::from(lane.as_str())],
    }
}

fn type_condition(pattern: &TypePattern) -> Option<Document> {
    match pattern {
        TypePattern::Exact(exact) => Some(doc! { "eventType": { "$eq": exact } }),
        TypePattern::Prefix(prefix) if prefix.is_empty() => None,
        TypePattern::Prefix(prefix) => {
            let mut range = doc! { "$gte": prefix };
            if let Some(bound) = TypePattern::upper_bound(prefix) {
                range.insert("$lt", bound);
            }
            Some(doc! { "eventType": range })
        }
    }
}

/// A search for a text within the message, as an expression on values rather than a pattern.
fn mentions(text: &str) -> Document {
    let message = doc! { "$cond": [{ "$eq": [{ "$type": "$lastError" }, "string"] }, "$lastError", ""] };
    let sought: Bson = doc! { "$literal": text.to_ascii_lowercase() }.into();
    let found = doc! { "$indexOfBytes": [{ "$toLower": message }, sought] };
    doc! { "$expr": { "$gte": [found, 0] } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_gives_is_only_ever_a_value() {
        let hostile = r#"{"$ne": null}"#.to_owned();
        let filter = Filter {
            handler: Some(hostile.clone()),
            key: Some("$where".to_owned()),
            event: Some(hostile.as_str().into()),
            error: Some("$lastError".to_owned()),
            event_type: Some(".*".parse().unwrap()),
            ..Filter::default()
        };
        let conditions = conditions(&filter);
        let conditions = conditions.get_array("$and").unwrap();
        for expected in [
            doc! { "handler": { "$eq": &hostile } },
            doc! { "key": { "$eq": "$where" } },
            doc! { "eventId": { "$eq": &hostile } },
            doc! { "eventType": { "$gte": ".", "$lt": "/" } },
            mentions("$lasterror"),
        ] {
            assert!(
                conditions.contains(&Bson::from(expected.clone())),
                "{expected} is not in {conditions:?}"
            );
        }
    }
}
