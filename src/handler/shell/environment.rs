//! The environment of a child: a short list of what every program needs, and what its configuration names.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::trace;
use crate::model::{Envelope, Timestamp};

/// What every child gets from the worker's own environment, beside the locale (`LC_*`).
const ALWAYS_INHERITED: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];

/// Picks from the worker's environment what a child may see: nothing that could hold a secret unless it is asked for.
pub(super) fn inherited(
    parent: impl IntoIterator<Item = (OsString, OsString)>,
    also: &[String],
) -> BTreeMap<OsString, OsString> {
    parent.into_iter().filter(|(name, _)| is_inherited(name, also)).collect()
}

fn is_inherited(name: &OsStr, also: &[String]) -> bool {
    let is_locale = name.as_encoded_bytes().starts_with(b"LC_");
    is_locale
        || ALWAYS_INHERITED.iter().any(|known| name == *known)
        || also.iter().any(|named| name == &**named)
}

/// Variables that differ from attempt to attempt.
pub(in crate::handler) type Facts = Vec<(&'static str, String)>;

/// The small facts of an attempt. A value that no environment can hold (one with a NUL, which another client's id might
/// have) is left out; the envelope has it.
pub(super) fn facts(envelope: &Envelope, lease_expires_at: Timestamp) -> Facts {
    let always = [
        ("RELAY_DELIVERY_ID", envelope.delivery_id.to_string()),
        ("RELAY_EVENT_ID", envelope.event_id.to_string()),
        ("RELAY_EVENT_TYPE", envelope.event_type.clone()),
        ("RELAY_HANDLER", envelope.handler.clone()),
        ("RELAY_ATTEMPT", envelope.attempt.to_string()),
        ("RELAY_MAX_ATTEMPTS", envelope.max_attempts.to_string()),
        ("RELAY_LEASE_EXPIRES_AT", lease_expires_at.to_string()),
    ];
    let key = envelope.key.clone().map(|key| ("RELAY_KEY", key));
    let sequence = envelope.sequence.map(|sequence| ("RELAY_SEQUENCE", sequence.to_string()));
    let traced = trace::context_of(&envelope.headers);
    let parent = traced.map(|traced| ("TRACEPARENT", traced.parent.to_owned()));
    let state = traced.and_then(|traced| Some(("TRACESTATE", traced.state?.to_owned())));
    let all = always.into_iter().chain(key).chain(sequence).chain(parent).chain(state);
    all.filter(|(_, value)| !value.contains('\0')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_inherits_the_short_list_and_what_is_named() {
        let parent = ["PATH", "LC_TIME", "LCX", "RELAYCTL_STORE", "AWS_SECRET_ACCESS_KEY", "API_BASE", "TZ"]
            .map(|name| (OsString::from(name), OsString::from("value")));
        let kept = inherited(parent, &["API_BASE".to_owned()]);
        let names: Vec<_> = kept.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, ["API_BASE", "LC_TIME", "PATH", "TZ"]);
    }
}
