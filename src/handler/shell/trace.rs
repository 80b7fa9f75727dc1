//! The W3C trace context among the headers of an event, as far as it is well-formed.

use serde_json::Value;

/// The most entries, and bytes, of a `tracestate`.
const MOST_ENTRIES: usize = 32;
const MOST_BYTES: usize = 512;

/// Where a trace has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceContext<'h> {
    pub(super) parent: &'h str,
    pub(super) state: Option<&'h str>,
}

/// The trace context of these headers, whose names may be in capitals. A state means nothing without a parent.
pub(super) fn context_of(headers: &Value) -> Option<TraceContext<'_>> {
    let header = |wanted: &str| {
        let mut headers = headers.as_object().into_iter().flatten();
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).and_then(|(_, value)| value.as_str())
    };
    let parent = header("traceparent").map(str::trim).filter(|parent| is_parent(parent))?;
    Some(TraceContext { parent, state: header("tracestate").map(str::trim).filter(|state| is_state(state)) })
}

/// `version-trace-span-flags`; what a later version has behind these is allowed.
fn is_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, span, flags, rest @ ..] = &parts[..] else { return false };
    let is_known = is_hex(version, 2) && *version != "ff" && (*version != "00" || rest.is_empty());
    let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    is_known && is_printable && is_id(trace, 32) && is_id(span, 16) && is_hex(flags, 2)
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// All zeros stand for none.
fn is_id(text: &str, length: usize) -> bool {
    is_hex(text, length) && text.bytes().any(|byte| byte != b'0')
}

/// `key=value` pairs between commas; empty ones are allowed.
fn is_state(text: &str) -> bool {
    let entries = || text.split(',').map(|entry| entry.trim_matches([' ', '\t']));
    let is_short = (1..=MOST_BYTES).contains(&text.len()) && entries().count() <= MOST_ENTRIES;
    is_short
        && entries().any(|entry| !entry.is_empty())
        && entries().all(|entry| entry.is_empty() || is_entry(entry))
}

fn is_entry(entry: &str) -> bool {
    let Some((key, value)) = entry.split_once('=') else { return false };
    let is_key_byte =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let is_value_byte = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    !key.is_empty() && key.bytes().all(is_key_byte) && !value.is_empty() && value.bytes().all(is_value_byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_well_formed_context_is_found_whatever_the_case_of_its_names() {
        let headers = json!({"TraceParent": PARENT, "tracestate": "rojo=00f067aa0ba902b7, congo@t=t61 x"});
        let state = Some("rojo=00f067aa0ba902b7, congo@t=t61 x");
        assert_eq!(context_of(&headers), Some(TraceContext { parent: PARENT, state }));
        let later = format!("cc{}-what-comes", &PARENT[2..]);
        let headers = json!({ "traceparent": later });
        assert_eq!(context_of(&headers), Some(TraceContext { parent: &later, state: None }));
    }

    #[test]
    fn what_is_not_well_formed_is_left_out() {
        let zeros = "0".repeat(32);
        for parent in [
            "".to_owned(),
            PARENT.to_uppercase(),
            PARENT.replacen("00", "ff", 1),
            format!("{PARENT}-more"),
            format!("cc{}-a\0", &PARENT[2..]),
            PARENT[..54].to_owned(),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros),
            PARENT.replace("00f067aa0ba902b7", &zeros[..16]),
            PARENT.replace('-', "_"),
        ] {
            assert_eq!(context_of(&json!({"traceparent": parent, "tracestate": "a=1"})), None, "{parent}");
        }
        for headers in [json!(null), json!([]), json!({"traceparent": 5}), json!({"tracestate": "a=1"})] {
            assert_eq!(context_of(&headers), None);
        }
        for state in [
            "",
            ",",
            "a",
            "=1",
            "a=",
            "A=1",
            "a=b=c",
            "a=\n",
            &"a=1,".repeat(33),
            &format!("a={}", "x".repeat(512)),
        ] {
            let headers = json!({"traceparent": PARENT, "tracestate": state});
            assert_eq!(context_of(&headers), Some(TraceContext { parent: PARENT, state: None }), "{state}");
        }
    }
}
