//! What the server makes of the expressions in the update pipelines of claims: as much of the language as they use.

use mongodb::bson::{Bson, Document};

use super::matching::{compare, equal};

/// The value of an expression; `None` where it names a field that is missing, or says that one is to be removed.
pub(super) fn evaluate(document: &Document, expression: &Bson) -> Option<Bson> {
    match expression {
        Bson::String(text) if text == "$$REMOVE" => None,
        Bson::String(text) => match text.strip_prefix('$') {
            Some(field) => document.get(field).cloned(),
            None => Some(expression.clone()),
        },
        Bson::Array(items) => {
            let item = |item| evaluate(document, item).unwrap_or(Bson::Null);
            Some(Bson::Array(items.iter().map(item).collect()))
        }
        Bson::Document(call) => match call.iter().next() {
            Some((name, operand)) if name.starts_with('$') => run(document, name, operand),
            _ => Some(Bson::Document(members(document, call))),
        },
        _ => Some(expression.clone()),
    }
}

fn members(document: &Document, expressions: &Document) -> Document {
    let member = |(name, value): (&String, &Bson)| Some((name.clone(), evaluate(document, value)?));
    expressions.iter().filter_map(member).collect()
}

fn run(document: &Document, operator: &str, operand: &Bson) -> Option<Bson> {
    let operands: Vec<&Bson> = operand.as_array().map_or_else(|| vec![operand], |list| list.iter().collect());
    let value = |index: usize| evaluate(document, operands[index]);
    let or_null = |index| value(index).unwrap_or(Bson::Null);
    match operator {
        "$literal" => Some(operand.clone()),
        "$ifNull" => operands.iter().filter_map(|one| evaluate(document, one)).find(|one| *one != Bson::Null),
        "$cond" => value(if is_true(&or_null(0)) { 1 } else { 2 }),
        "$eq" => Some(Bson::from(equal(&or_null(0), &or_null(1)))),
        "$gt" => Some(Bson::from(compare(&or_null(0), &or_null(1)).is_some_and(std::cmp::Ordering::is_gt))),
        "$type" => {
            Some(Bson::from(if matches!(value(0), Some(Bson::String(_))) { "string" } else { "other" }))
        }
        "$isArray" => Some(Bson::from(matches!(value(0), Some(Bson::Array(_))))),
        "$isNumber" => {
            Some(Bson::from(matches!(value(0), Some(Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_)))))
        }
        "$size" => Some(Bson::from(array(or_null(0)).len() as i64)),
        "$subtract" => Some(Bson::from(integer(&or_null(0)) - integer(&or_null(1)))),
        "$concat" => {
            let texts = (0..operands.len()).map(or_null);
            Some(Bson::from(
                texts.map(|text| text.as_str().expect("a string").to_owned()).collect::<String>(),
            ))
        }
        "$concatArrays" => {
            Some(Bson::Array((0..operands.len()).flat_map(|index| array(or_null(index))).collect()))
        }
        "$slice" => Some(Bson::Array(slice(array(or_null(0)), integer(&or_null(1))))),
        _ => panic!("the expression {operator} {operand} is unknown here"),
    }
}

fn is_true(value: &Bson) -> bool {
    value.as_bool().expect("a condition")
}

fn array(value: Bson) -> Vec<Bson> {
    match value {
        Bson::Array(items) => items,
        other => panic!("{other} is no array"),
    }
}

fn integer(value: &Bson) -> i64 {
    match value {
        Bson::Int32(number) => i64::from(*number),
        Bson::Int64(number) => *number,
        other => panic!("{other} is no integer"),
    }
}

/// The first `count` items, or the last where it is negative.
fn slice(items: Vec<Bson>, count: i64) -> Vec<Bson> {
    let kept = usize::try_from(count.unsigned_abs()).expect("a small number").min(items.len());
    let from = if count < 0 { items.len() - kept } else { 0 };
    items[from..from + kept].to_vec()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn expressions_are_worth_what_they_are_on_the_server() {
        let document = doc! { "n": 3, "text": "x", "list": [1, 2, 3], "none": null };
        for (expression, expected) in [
            (Bson::from("$none"), Some(Bson::Null)),
            (Bson::from("$missing"), None),
            (Bson::from("$$REMOVE"), None),
            (doc! { "$ifNull": ["$missing", "$none", 7] }.into(), Some(Bson::from(7))),
            (doc! { "a": "$missing", "b": "$n" }.into(), Some(doc! { "b": 3 }.into())),
            (doc! { "$cond": [{ "$isNumber": "$text" }, 1, 0] }.into(), Some(Bson::from(0))),
            (
                doc! { "$cond": [{ "$eq": [{ "$type": "$text" }, "string"] }, "$text", 0] }.into(),
                Some("x".into()),
            ),
            (doc! { "$concat": ["a", "$text", { "$literal": "$" }] }.into(), Some("ax$".into())),
            (doc! { "$slice": [{ "$concatArrays": ["$list", [4]] }, -2] }.into(), Some(vec![3, 4].into())),
            (
                doc! { "$slice": ["$list", { "$subtract": [{ "$size": "$list" }, 1] }] }.into(),
                Some(vec![1, 2].into()),
            ),
            (doc! { "$gt": [{ "$size": "$list" }, 3] }.into(), Some(Bson::from(false))),
        ] {
            assert_eq!(evaluate(&document, &expression), expected, "{expression}");
        }
    }
}
