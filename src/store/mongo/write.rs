//! Writes to the application's own collections, in a transaction of the outbox.

use mongodb::bson::{Document, serialize_to_vec};
use mongodb::error::{Error as DriverError, ErrorKind as DriverKind, TRANSIENT_TRANSACTION_ERROR};
use mongodb::options::UpdateModifications;
use mongodb::{ClientSession, Collection};
use serde_json::{Map, Value};

use super::MongoStore;
use super::error::{Cause, DUPLICATE_KEY, classify, error_code};
use crate::store::{ErrorKind, Result, StoreError, WriteChange, WriteOperation};

/// The largest document that the server takes (<https://www.mongodb.com/docs/manual/reference/limits/>).
const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// See [`Store::check_writes`](crate::store::Store::check_writes).
pub(super) fn check(store: &MongoStore, collections: &[String]) -> Result<()> {
    collections.iter().try_for_each(|collection| check_collection(store, collection))
}

fn check_collection(store: &MongoStore, collection: &str) -> Result<()> {
    let refuse = |why| {
        let message = format!("collection `{}` {why}", collection.escape_debug());
        Err(StoreError::new(ErrorKind::Invalid, message))
    };
    if store.names.are_for(collection) {
        return refuse("is the outbox's own, and only the outbox writes to it");
    }
    let is_name = !collection.is_empty() && !collection.contains(['$', '\0']);
    if !is_name || collection.starts_with("system.") {
        return refuse("cannot be written to: that is no name of an application's collection");
    }
    Ok(())
}

/// See [`Transaction::write`](crate::store::Transaction::write).
pub(super) async fn write(
    store: &MongoStore,
    session: &mut ClientSession,
    WriteOperation { collection, change }: &WriteOperation,
) -> Result<()> {
    check_collection(store, collection)?;
    let doing = format!("{} in {collection}", change.name());
    let command = Command::of(change, &doing)?;
    let collection = store.database.collection(collection);
    command.send(&collection, session).await.map_err(|error| refusal(&doing, error))
}

/// A change as the driver takes it.
enum Command {
    Insert(Document),
    Update { filter: Document, update: UpdateModifications, many: bool, upsert: bool },
    Replace { filter: Document, replacement: Document, upsert: bool },
    Delete(Document),
}

impl Command {
    fn of(change: &WriteChange, doing: &str) -> Result<Self> {
        let document = |what: &str, members: &Map<String, Value>| {
            document_of(members).map_err(|why| invalid(doing, what, &why))
        };
        Ok(match change {
            WriteChange::InsertOne { document: members } => Command::Insert(document("document", members)?),
            WriteChange::Update { filter, update, many, upsert } => Command::Update {
                filter: document("filter", filter)?,
                update: update_of(update).map_err(|why| invalid(doing, "update", &why))?,
                many: *many,
                upsert: *upsert,
            },
            WriteChange::ReplaceOne { filter, replacement, upsert } => Command::Replace {
                filter: document("filter", filter)?,
                replacement: document("replacement", replacement)?,
                upsert: *upsert,
            },
            WriteChange::DeleteOne { filter } => Command::Delete(document("filter", filter)?),
        })
    }

    /// A transaction has its own concerns; those of the database's handle are left out by the driver.
    async fn send(
        self,
        into: &Collection<Document>,
        session: &mut ClientSession,
    ) -> mongodb::error::Result<()> {
        match self {
            Command::Insert(document) => into.insert_one(document).session(session).await.map(drop),
            Command::Update { filter, update, many: false, upsert } => {
                into.update_one(filter, update).upsert(upsert).session(session).await.map(drop)
            }
            Command::Update { filter, update, many: true, upsert } => {
                into.update_many(filter, update).upsert(upsert).session(session).await.map(drop)
            }
            Command::Replace { filter, replacement, upsert } => {
                into.replace_one(filter, replacement).upsert(upsert).session(session).await.map(drop)
            }
            Command::Delete(filter) => into.delete_one(filter).session(session).await.map(drop),
        }
    }
}

/// Unlike payloads, what is written here is meant as extended JSON: see [`super::json`] for what is not.
fn document_of(members: &Map<String, Value>) -> Result<Document, String> {
    let document = Document::try_from(members.clone()).map_err(|error| not_extended_json(&error))?;
    let bytes = serialize_to_vec(&document).map_err(|error| error.to_string())?.len();
    check_size(bytes)?;
    Ok(document)
}

/// Refuses a document of more bytes than the server takes.
pub(super) fn check_size(bytes: usize) -> Result<(), String> {
    if bytes > MAX_DOCUMENT_BYTES {
        return Err(format!("takes {bytes} bytes, and at most {MAX_DOCUMENT_BYTES} (16 MiB) are allowed"));
    }
    Ok(())
}

fn update_of(update: &Value) -> Result<UpdateModifications, String> {
    match update {
        Value::Object(operators) => document_of(operators).map(UpdateModifications::Document),
        Value::Array(stages) => {
            let stages = stages.iter().map(|stage| match stage {
                Value::Object(stage) => document_of(stage),
                _ => Err("has a stage that is no object".to_owned()),
            });
            stages.collect::<Result<_, _>>().map(UpdateModifications::Pipeline)
        }
        _ => Err("must be an object or an array of stages".to_owned()),
    }
}

fn not_extended_json(error: &mongodb::bson::error::Error) -> String {
    format!("is not valid extended JSON: {error}")
}

fn invalid(doing: &str, what: &str, why: &str) -> StoreError {
    StoreError::new(ErrorKind::Invalid, format!("{doing} failed: {what}: {why}"))
}

/// The server's reason is what whoever wrote the operation needs. Conflicts and lost connections keep the kind by which
/// the transaction is repeated.
fn refusal(doing: &str, error: DriverError) -> StoreError {
    let is_answer = matches!(
        error.kind.as_ref(),
        DriverKind::Command(_) | DriverKind::Write(_) | DriverKind::InsertMany(_)
    );
    if !is_answer || error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
        return classify(doing, error);
    }
    let is_duplicate = error_code(&error) == Some(DUPLICATE_KEY);
    let kind = if is_duplicate { ErrorKind::Conflict } else { ErrorKind::Invalid };
    let cause = Cause(error);
    StoreError::new(kind, format!("{doing} failed: {cause}")).with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{DateTime, doc, oid::ObjectId};
    use serde_json::json;

    fn document(value: Value) -> Result<Document, String> {
        match value {
            Value::Object(members) => document_of(&members),
            _ => panic!("an object was expected"),
        }
    }

    #[test]
    fn writes_are_extended_json() {
        let id = ObjectId::parse_str("5f0000000000000000000000").unwrap();
        let read = document(json!({
            "_id": {"$oid": "5f0000000000000000000000"},
            "at": {"$date": "1970-01-01T00:00:01Z"},
            "small": 7, "large": 3_000_000_000_i64, "double": 1.0, "long": {"$numberLong": "7"},
            "nested": [{"at": {"$date": {"$numberLong": "1000"}}}],
        }));
        let at = DateTime::from_millis(1_000);
        let expected = doc! {
            "_id": id, "at": at, "small": 7, "large": 3_000_000_000_i64, "double": 1.0, "long": 7_i64,
            "nested": [{"at": at}],
        };
        assert_eq!(read, Ok(expected));
    }

    #[test]
    fn operators_of_filters_and_updates_are_left_as_they_are() {
        let filter =
            document(json!({"$or": [{"at": {"$lt": {"$date": "1970-01-01T00:00:01Z"}}}, {"n": {"$gt": 1}}]}));
        let at = DateTime::from_millis(1_000);
        assert_eq!(filter, Ok(doc! {"$or": [{"at": {"$lt": at}}, {"n": {"$gt": 1}}]}));
        let UpdateModifications::Pipeline(stages) = update_of(&json!([{"$set": {"a": "$b"}}])).unwrap()
        else {
            panic!("a pipeline was expected");
        };
        assert_eq!(stages, [doc! {"$set": {"a": "$b"}}]);
        assert!(update_of(&json!([1])).is_err() && update_of(&json!("$set")).is_err());
    }

    #[test]
    fn what_cannot_be_written_says_why() {
        for (value, why) in [
            (json!({"at": {"$date": "yesterday"}}), "is not valid extended JSON: "),
            (json!({"id": {"$oid": "5f"}}), "is not valid extended JSON: "),
            (
                json!({"text": "x".repeat(MAX_DOCUMENT_BYTES)}),
                "takes 16777232 bytes, and at most 16777216 (16 MiB)",
            ),
        ] {
            let error = document(value).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
