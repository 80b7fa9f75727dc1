//! What the server makes of the filters and updates that claims send: as much of the language as they use. Anything else is
//! refused with a panic, so that a new operator is not taken for a match.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document};

use super::expressions::evaluate;

/// Whether a document passes a filter. Absent and null are one.
pub(super) fn matches(document: &Document, filter: &Document) -> bool {
    filter.iter().all(|(field, condition)| match (field.as_str(), condition) {
        ("$or", Bson::Array(choices)) => choices.iter().any(|choice| matches(document, part(choice))),
        _ => meets(document.get(field).unwrap_or(&Bson::Null), condition),
    })
}

fn part(condition: &Bson) -> &Document {
    condition.as_document().expect("a document in a list of conditions")
}

fn meets(value: &Bson, condition: &Bson) -> bool {
    match condition {
        Bson::Document(operators) => operators.iter().all(|(name, operand)| passes(value, name, operand)),
        literal => equal(value, literal),
    }
}

fn passes(value: &Bson, operator: &str, operand: &Bson) -> bool {
    match (operator, operand) {
        ("$in", Bson::Array(choices)) => choices.iter().any(|choice| equal(value, choice)),
        ("$exists", Bson::Boolean(exists)) => (*value != Bson::Null) == *exists,
        ("$ne", _) => !equal(value, operand),
        ("$lt", _) => compare(value, operand) == Some(Ordering::Less),
        ("$lte", _) => compare(value, operand).is_some_and(Ordering::is_le),
        ("$gt", _) => compare(value, operand) == Some(Ordering::Greater),
        ("$gte", _) => compare(value, operand).is_some_and(Ordering::is_ge),
        _ => panic!("the filter operator {operator} {operand} is unknown here"),
    }
}

pub(super) fn equal(a: &Bson, b: &Bson) -> bool {
    a == b || compare(a, b) == Some(Ordering::Equal)
}

/// The order of two values of one kind; values of different kinds do not compare.
pub(super) fn compare(a: &Bson, b: &Bson) -> Option<Ordering> {
    match (a, b) {
        (Bson::String(a), Bson::String(b)) => Some(a.cmp(b)),
        (Bson::DateTime(a), Bson::DateTime(b)) => Some(a.cmp(b)),
        _ => number(a)?.partial_cmp(&number(b)?),
    }
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

/// Changes a document as an update says: by operators, or by the stages of a pipeline.
pub(super) fn update(document: &mut Document, update: &Bson) {
    match update {
        Bson::Document(operators) => {
            for (name, operand) in operators {
                match (name.as_str(), operand) {
                    ("$set", Bson::Document(values)) => document.extend(values.clone()),
                    _ => panic!("the update operator {name} is unknown here"),
                }
            }
        }
        Bson::Array(stages) => stages.iter().for_each(|stage| run_stage(document, part(stage))),
        other => panic!("{other} is no update"),
    }
}

fn run_stage(document: &mut Document, stage: &Document) {
    for (name, operand) in stage {
        match (name.as_str(), operand) {
            ("$set", Bson::Document(expressions)) => {
                let before = document.clone();
                for (field, expression) in expressions {
                    match evaluate(&before, expression) {
                        Some(value) => drop(document.insert(field, value)),
                        None => drop(document.remove(field)),
                    }
                }
            }
            ("$unset", Bson::Array(fields)) => {
                fields.iter().filter_map(Bson::as_str).for_each(|field| drop(document.remove(field)));
            }
            _ => panic!("the stage {name} is unknown here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, doc};

    use super::*;

    #[test]
    fn filters_match_as_on_the_server() {
        let document = doc! { "n": 3, "t": "b", "at": DateTime::from_millis(5), "none": null };
        for (filter, expected) in [
            (doc! { "n": 3.0, "t": "b" }, true),
            (doc! { "n": { "$in": [1, 3_i64] } }, true),
            (doc! { "n": { "$gte": "" } }, false),
            (doc! { "absent": null, "none": null }, true),
            (doc! { "none": { "$exists": true } }, false),
            (doc! { "at": { "$gte": DateTime::MIN, "$lte": DateTime::from_millis(4) } }, false),
            (doc! { "$or": [{ "t": { "$gt": "b" } }, { "t": { "$gt": "a", "$ne": "c" } }] }, true),
        ] {
            assert_eq!(matches(&document, &filter), expected, "{filter}");
        }
    }

    #[test]
    fn updates_change_as_on_the_server() {
        let mut document = doc! { "a": 1, "b": "$a", "gone": true };
        let set =
            doc! { "$set": { "a": { "$literal": "$b" }, "c": { "$ifNull": ["$missing", 7] }, "d": "$a" } };
        update(&mut document, &Bson::from(vec![set, doc! { "$unset": ["gone"] }]));
        assert_eq!(document, doc! { "a": "$b", "b": "$a", "c": 7, "d": 1 });
        update(&mut document, &Bson::from(doc! { "$set": { "d": "$a" } }));
        assert_eq!(document.get("d"), Some(&Bson::from("$a")));
    }
}
