//! Deliveries with their events, from and to other stores.

use serde::Serialize;
use serde_json::{Map, Value};

use super::state::State;
use crate::model::{Delivery, ExportLine, Filter, Timestamp, Types};
use crate::store::{ErrorKind, Result, StoreError};

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
