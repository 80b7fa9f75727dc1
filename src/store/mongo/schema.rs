//! Collections and indexes: what setup creates, and how to tell whether it is there.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Database, IndexModel};

use super::error::classify;
use super::names::Names;
use crate::store::{ErrorKind, Result, SetupFinding, SetupProblem, SetupReport, StoreError};

/// An index of the deliveries.
///
/// The published set, with these differences, each for a query that was measured: `open` is the published ordering index
/// with `dueAt` and `_id` behind it, so that the heads of keys are found by a skip scan within the index; `parked` carries
/// its lane for the same reason; `due` and the listing indexes end in `_id`, so that a listing has a total order without
/// sorting and its cursor is stable; `key_created` serves the deliveries of one key, finished ones included; `key_order`
/// has all deliveries in an order that no write changes, and in which those of a key follow each other.
pub(super) struct IndexSpec {
    pub(super) name: &'static str,
    fields: &'static [&'static str],
    partial: Option<fn() -> Document>,
    unique: bool,
}

const fn index(name: &'static str, fields: &'static [&'static str]) -> IndexSpec {
    IndexSpec { name, fields, partial: None, unique: false }
}

const fn partial(name: &'static str, fields: &'static [&'static str], filter: fn() -> Document) -> IndexSpec {
    IndexSpec { name, fields, partial: Some(filter), unique: false }
}

/// One delivery for an event and handler; look-up by event.
pub(super) const EVENT_HANDLER: &str = "event_handler";
/// The claim scan: due deliveries of lane ready.
pub(super) const CLAIM: &str = "claim";
/// Unfinished deliveries by handler and key, in order.
pub(super) const OPEN: &str = "open";
/// Parked deliveries by handler and key.
pub(super) const PARKED: &str = "parked";
/// Leased deliveries by handler and key.
pub(super) const RUNNING: &str = "running";
/// Unfinished deliveries by due time.
pub(super) const DUE: &str = "due";
/// Completed deliveries by the time of completion.
pub(super) const COMPLETED: &str = "completed";
/// Listing by status.
pub(super) const STATUS_CREATED: &str = "status_created";
/// Listing by last change; purge of dead deliveries.
pub(super) const STATUS_UPDATED: &str = "status_updated";
/// Listing by handler.
pub(super) const HANDLER_CREATED: &str = "handler_created";
/// Listing by event type.
pub(super) const TYPE_CREATED: &str = "type_created";
/// Listing by key, and whether a key has deliveries left.
pub(super) const KEY_CREATED: &str = "key_created";
/// Export and backfill; which sequences of a key are taken.
pub(super) const KEY_ORDER: &str = "key_order";

/// The indexes of the deliveries; the other collections need none beside `_id`.
pub(super) const DELIVERY_INDEXES: &[IndexSpec] = &[
    IndexSpec { unique: true, ..index(EVENT_HANDLER, &["eventId", "handler"]) },
    partial(CLAIM, &["handler", "dueAt", "_id"], || doc! { "lane": "ready", "dueAt": { "$exists": true } }),
    partial(OPEN, &["handler", "key", "sequence", "dueAt", "_id"], || doc! { "dueAt": { "$exists": true } }),
    partial(PARKED, &["handler", "key", "sequence", "lane"], || doc! { "lane": "parked" }),
    partial(RUNNING, &["handler", "key", "dueAt"], || doc! { "status": "processing" }),
    partial(DUE, &["dueAt", "_id"], || doc! { "dueAt": { "$exists": true } }),
    partial(COMPLETED, &["completedAt"], || doc! { "completedAt": { "$exists": true } }),
    index(STATUS_CREATED, &["status", "createdAt", "_id"]),
    index(STATUS_UPDATED, &["status", "updatedAt", "_id"]),
    index(HANDLER_CREATED, &["handler", "createdAt", "_id"]),
    index(TYPE_CREATED, &["eventType", "createdAt", "_id"]),
    partial(KEY_CREATED, &["key", "createdAt", "_id"], || doc! { "key": { "$gte": "" } }),
    index(KEY_ORDER, &["key", "sequence", "_id"]),
];

impl IndexSpec {
    fn keys(&self) -> Document {
        self.fields.iter().map(|field| ((*field).to_owned(), Bson::Int32(1))).collect()
    }

    fn filter(&self) -> Option<Document> {
        self.partial.map(|filter| filter())
    }

    fn model(&self) -> IndexModel {
        let unique = self.unique.then_some(true);
        let options = IndexOptions::builder()
            .name(self.name.to_owned())
            .partial_filter_expression(self.filter())
            .unique(unique)
            .build();
        IndexModel::builder().keys(self.keys()).options(options).build()
    }

    /// What the indexes that are there mean for this one; `None` when one of them is this one, by this name.
    fn finding(&self, collection: &str, there: &[IndexModel]) -> Option<SetupFinding> {
        let same_name = there.iter().find(|index| name_of(index) == Some(self.name));
        let same_shape = there.iter().find(|index| self.has_shape(index));
        let (problem, detail) = match (same_name, same_shape) {
            (Some(index), _) if self.has_shape(index) && self.is_unique_enough(index) => return None,
            (Some(index), _) if self.has_shape(index) => {
                (SetupProblem::NotUnique, "it has to be unique".to_owned())
            }
            (Some(index), _) => {
                let detail = format!("its name is taken by an index on {}", describe(index));
                (SetupProblem::Conflicting, detail)
            }
            (None, Some(index)) if self.is_unique_enough(index) => {
                let name = name_of(index).unwrap_or("no name");
                (
                    SetupProblem::ForeignName,
                    format!("it is there under the name `{name}`, which works as well"),
                )
            }
            (None, Some(_)) => {
                (SetupProblem::NotUnique, "it is there under another name, and has to be unique".to_owned())
            }
            (None, None) => (SetupProblem::Missing, format!("there is no index on {}", self.keys())),
        };
        Some(SetupFinding { object: format!("{collection}.{}", self.name), problem, detail })
    }

    fn has_shape(&self, index: &IndexModel) -> bool {
        let filter = index.options.as_ref().and_then(|options| options.partial_filter_expression.clone());
        same_keys(&index.keys, &self.keys()) && filter == self.filter()
    }

    fn is_unique_enough(&self, index: &IndexModel) -> bool {
        !self.unique || index.options.as_ref().and_then(|options| options.unique) == Some(true)
    }
}

/// Directions are numbers of any type: mongosh writes doubles.
fn same_keys(a: &Document, b: &Document) -> bool {
    let plain = |keys: &Document| -> Vec<(String, Option<i64>)> {
        keys.iter().map(|(field, direction)| (field.clone(), whole_number(direction))).collect()
    };
    plain(a) == plain(b)
}

fn whole_number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(integer) => Some(i64::from(*integer)),
        Bson::Int64(integer) => Some(*integer),
        Bson::Double(number) => Some(*number as i64),
        _ => None,
    }
}

fn name_of(index: &IndexModel) -> Option<&str> {
    index.options.as_ref()?.name.as_deref()
}

fn describe(index: &IndexModel) -> String {
    match index.options.as_ref().and_then(|options| options.partial_filter_expression.as_ref()) {
        Some(filter) => format!("{} where {filter}", index.keys),
        None => index.keys.to_string(),
    }
}

/// Creates what is missing.
pub(super) async fn setup(database: &Database, names: &Names) -> Result<SetupReport> {
    let mut report = SetupReport::default();
    create_collections(database, names, &mut report).await?;
    let there = indexes(database, &names.deliveries).await?;
    let mut missing = Vec::new();
    let mut in_the_way = Vec::new();
    for spec in DELIVERY_INDEXES {
        let object = format!("{}.{}", names.deliveries, spec.name);
        match spec.finding(&names.deliveries, &there) {
            None => report.existing.push(object),
            Some(finding) => match finding.problem {
                SetupProblem::Missing => missing.push((object, spec)),
                SetupProblem::ForeignName => report.existing.push(object),
                SetupProblem::Conflicting | SetupProblem::NotUnique => in_the_way.push(finding),
            },
        }
    }
    create_indexes(database, names, missing, &mut report).await?;
    in_the_way.first().map_or(Ok(report), |_| Err(conflicting(&in_the_way)))
}

async fn create_collections(database: &Database, names: &Names, report: &mut SetupReport) -> Result<()> {
    let there = collections(database).await?;
    for name in names.all() {
        if there.iter().any(|existing| existing == name) {
            report.existing.push(name.to_owned());
            continue;
        }
        match database.create_collection(name).await {
            Ok(()) => report.created.push(name.to_owned()),
            Err(error) if is_namespace_exists(&error) => report.existing.push(name.to_owned()),
            Err(error) => return Err(classify(&format!("creating collection {name}"), error)),
        }
    }
    Ok(())
}

async fn create_indexes(
    database: &Database,
    names: &Names,
    missing: Vec<(String, &IndexSpec)>,
    report: &mut SetupReport,
) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let models = missing.iter().map(|(_, spec)| spec.model());
    let deliveries = database.collection::<Document>(&names.deliveries);
    let doing = format!("creating the indexes of {}", names.deliveries);
    deliveries.create_indexes(models).await.map_err(|error| classify(&doing, error))?;
    report.created.extend(missing.into_iter().map(|(object, _)| object));
    Ok(())
}

fn is_namespace_exists(error: &mongodb::error::Error) -> bool {
    const NAMESPACE_EXISTS: i32 = 48;
    matches!(error.kind.as_ref(), mongodb::error::ErrorKind::Command(error) if error.code == NAMESPACE_EXISTS)
}

fn conflicting(findings: &[SetupFinding]) -> StoreError {
    let each: Vec<_> =
        findings.iter().map(|finding| format!("{}: {}", finding.object, finding.detail)).collect();
    StoreError::new(ErrorKind::Misconfigured, format!("setup cannot create every index. {}", each.join("; ")))
        .with_hint("drop or rename the index that is in the way, then run `relayctl setup` again")
}

/// Compares what is there with what it should be.
pub(super) async fn check(database: &Database, names: &Names) -> Result<Vec<SetupFinding>> {
    let there = collections(database).await?;
    let is_there = |name: &str| there.iter().any(|existing| existing == name);
    let missing = names.all().into_iter().filter(|name| !is_there(name)).map(|name| SetupFinding {
        object: name.to_owned(),
        problem: SetupProblem::Missing,
        detail: "there is no such collection".to_owned(),
    });
    let mut findings: Vec<_> = missing.collect();
    if is_there(&names.deliveries) {
        let there = indexes(database, &names.deliveries).await?;
        findings.extend(DELIVERY_INDEXES.iter().filter_map(|spec| spec.finding(&names.deliveries, &there)));
    }
    Ok(findings)
}

async fn collections(database: &Database) -> Result<Vec<String>> {
    database.list_collection_names().await.map_err(|error| classify("listing the collections", error))
}

async fn indexes(database: &Database, collection: &str) -> Result<Vec<IndexModel>> {
    let doing = format!("listing the indexes of {collection}");
    let cursor = database.collection::<Document>(collection).list_indexes().await;
    let cursor = cursor.map_err(|error| classify(&doing, error))?;
    cursor.try_collect().await.map_err(|error| classify(&doing, error))
}

/// A mongosh script that does what setup does, for those who keep their schema in migrations.
pub fn setup_script(prefix: &str) -> String {
    let names = Names::with_prefix(prefix);
    let mut script = String::from("// What `relayctl setup` creates. Running it again changes nothing.\n");
    for name in names.all() {
        script +=
            &format!("if (!db.getCollectionNames().includes({name:?})) db.createCollection({name:?});\n");
    }
    for spec in DELIVERY_INDEXES {
        let mut options = doc! { "name": spec.name };
        if spec.unique {
            options.insert("unique", true);
        }
        if let Some(filter) = spec.filter() {
            options.insert("partialFilterExpression", filter);
        }
        let (keys, options) = (spec.keys(), options);
        script += &format!("db.getCollection({:?}).createIndex({keys}, {options});\n", names.deliveries);
    }
    script
}
