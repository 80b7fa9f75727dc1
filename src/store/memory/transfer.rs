//! Deliveries with their events, from and to other stores.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::state::State;
use crate::model::{Delivery, Event, ExportLine, Filter, Timestamp, Types, check_importable};
use crate::store::{ErrorKind, Imported, Result, StoreError};

/// By key, sequence and id, those without a key first.
pub(super) fn export(state: &State, filter: &Filter, cutoff: Timestamp) -> Vec<Result<ExportLine>> {
    let is_meant = |delivery: &&Delivery| delivery.created_at <= cutoff && filter.matches(delivery);
    let mut deliveries: Vec<&Delivery> = state.deliveries.values().filter(is_meant).collect();
    deliveries.sort_by_key(|delivery| (&delivery.key, delivery.sequence, &delivery.id));
    deliveries.into_iter().map(|delivery| line_of(state, delivery)).collect()
}

fn line_of(state: &State, delivery: &Delivery) -> Result<ExportLine> {
    let corrupt = |reason: String| {
        StoreError::new(
            ErrorKind::Corrupt,
            format!("delivery {} cannot be understood: {reason}", delivery.id),
        )
    };
    let event = state.events.get(&delivery.event_id);
    let event = event.ok_or_else(|| corrupt(format!("its event {} is not there", delivery.event_id)))?;
    let fields = |document: Result<Map<String, Value>, serde_json::Error>| {
        document.map_err(|error| corrupt(error.to_string()))
    };
    Ok(ExportLine {
        event: fields(fields_of(event))?,
        delivery: fields(fields_of(delivery))?,
        types: Types::new(),
    })
}

fn fields_of(document: &impl Serialize) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::to_value(document)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Types that JSON tells apart well enough.
const NUMBERS: [&str; 3] = ["int", "long", "double"];

/// Stores a batch of lines as if they came one after the other.
pub(super) fn import(state: &mut State, lines: &[ExportLine]) -> Vec<Imported> {
    let import = |line| import_one(state, line).unwrap_or_else(|reason| Imported::Refused { reason });
    lines.iter().map(import).collect()
}

fn import_one(state: &mut State, line: &ExportLine) -> Result<Imported, String> {
    if let Some((place, name)) = line.types.iter().find(|(_, name)| !NUMBERS.contains(&name.as_str())) {
        return Err(format!("{place} is of the type {name}, which this store does not have"));
    }
    let event: Event = document_of("event", &line.event)?;
    let delivery: Delivery = document_of("delivery", &line.delivery)?;
    check_importable(&event, &delivery).map_err(|error| error.to_string())?;
    contradiction(state, &event, &delivery).map_or(Ok(()), Err)?;
    let is_twin = |there: &Delivery| {
        there.id == delivery.id || (&there.event_id, &there.handler) == (&event.id, &delivery.handler)
    };
    if state.deliveries.values().any(is_twin) {
        return Ok(Imported::Existing);
    }
    let is_new = !state.events.contains_key(&event.id);
    if let (true, Some(key), Some(sequence)) = (is_new, &delivery.key, delivery.sequence) {
        let counter = state.key_sequences.entry(key.clone()).or_insert(sequence);
        *counter = sequence.max(*counter);
    }
    state.events.entry(event.id.clone()).or_insert(event);
    state.deliveries.insert(delivery.id.clone(), delivery);
    Ok(Imported::Created { event: is_new })
}

/// What the line says that is not what is there.
fn contradiction(state: &State, event: &Event, delivery: &Delivery) -> Option<String> {
    if let Some(field) = state.deliveries.get(&delivery.id).and_then(|there| delivery.difference_from(there))
    {
        return Some(format!("delivery {} is there already with another {field}", delivery.id));
    }
    if let Some(there) = state.events.get(&event.id) {
        let field = field_that_differs(there, event)?;
        return Some(format!("event {} is there already with another {field}", event.id));
    }
    let (key, sequence) = (delivery.key.as_ref()?, delivery.sequence?);
    let mut there = state.deliveries.values();
    let owner = there.find(|there| there.key.as_ref() == Some(key) && there.sequence == Some(sequence))?;
    Some(format!("place {sequence} of key {key} is taken by event {}", owner.event_id))
}

fn field_that_differs(there: &Event, new: &Event) -> Option<String> {
    let (there, new) = (fields_of(there).ok()?, fields_of(new).ok()?);
    let mut names = there.keys().chain(new.keys());
    names.find(|name| there.get(*name) != new.get(*name)).cloned()
}

/// Reads a document that has no field beyond those that are known here. Null is as absent.
fn document_of<T: DeserializeOwned>(what: &str, fields: &Map<String, Value>) -> Result<T, String> {
    let present = fields.iter().filter(|(_, value)| !value.is_null());
    let present = present.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut unknown = None;
    let read = serde_ignored::deserialize(Value::Object(present), |place| {
        unknown.get_or_insert(place.to_string());
    });
    match (read, unknown) {
        (Err(error), _) => Err(format!("{what}: {error}")),
        (Ok(_), Some(place)) => Err(format!("{what}.{place} is a field that this store does not have")),
        (Ok(document), None) => Ok(document),
    }
}
