//! What a check measured, for a collector that reads files.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::model::Timestamp;
use crate::ops::{Measure, Reading};

/// A check at `at` in the text format of Prometheus. Where nothing could be found out there is just that, and no number
/// of an earlier time.
pub fn check_metrics(readings: Option<&[Reading]>, at: Timestamp) -> String {
    let mut registry = Registry::with_prefix("relayctl");
    let add = |registry: &mut Registry, name: &str, help: &str, value: f64| {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let seconds = at.as_millis() as f64 / 1_000.0;
    add(
        &mut registry,
        "check_up",
        "1 when the state could be found out",
        f64::from(u8::from(readings.is_some())),
    );
    add(&mut registry, "check_timestamp_seconds", "When it was looked at, in seconds since 1970", seconds);
    if let Some(readings) = readings {
        register(&mut registry, readings);
    }
    let mut text = String::new();
    // Writing into memory cannot fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfHandler {
    handler: String,
}

type OfHandlers = Family<OfHandler, Gauge<f64, AtomicU64>>;

/// What all handlers together have is under the empty name, which no handler has.
fn register(registry: &mut Registry, readings: &[Reading]) {
    let [dead, pending, expired, oldest, status] = std::array::from_fn(|_| OfHandlers::default());
    for reading in readings {
        let (family, value) = match reading.measure {
            Measure::Dead => (&dead, reading.value as f64),
            Measure::Pending => (&pending, reading.value as f64),
            Measure::Expired => (&expired, reading.value as f64),
            Measure::OldestDueMs => (&oldest, reading.value as f64 / 1_000.0),
        };
        let of_handler = OfHandler { handler: reading.handler.clone().unwrap_or_default() };
        family.get_or_create(&of_handler).set(value);
        let severity = f64::from(reading.status as u8);
        let status = status.get_or_create(&of_handler);
        status.set(severity.max(status.get()));
    }
    let mut add = |name: &str, help: &str, family| registry.register(name, help, family);
    add("dead", "Deliveries that were given up", dead);
    add("pending", "Deliveries that wait, delayed and parked ones included", pending);
    add("expired_leases", "Leases that ran out and that nobody took over", expired);
    add("oldest_due_age_seconds", "How long the unfinished delivery that was due first has been due", oldest);
    add("check_status", "0 ok, 1 warning, 2 critical, by the thresholds that were given", status);
}
