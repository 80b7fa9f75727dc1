//! What a command that ended with a temporary failure asks for on the last line of stdout.

use crate::handler::{InvalidWait, Wait};

/// How much of a line is shown that cannot be understood.
const SHOWN_CHARACTERS: usize = 60;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// `retry-after: 30s`: when to make the next attempt.
    RetryAfter(Wait),
    /// `snooze: 10m`: the same, and this attempt does not count.
    Snooze(Wait),
}

/// Reads a line. `None` when it is no wish.
///
/// # Errors
/// A remark, when it begins like one and says no time.
pub(super) fn read(line: &str) -> Option<Result<Wish, String>> {
    let (name, value) = line.trim().split_once(':')?;
    let wish: fn(Wait) -> Wish = match name.trim_end().to_ascii_lowercase().as_str() {
        "retry-after" => Wish::RetryAfter,
        "snooze" => Wish::Snooze,
        _ => return None,
    };
    Some(value.trim().parse().map(wish).map_err(|error| ignored(line.trim(), error)))
}

fn ignored(line: &str, error: InvalidWait) -> String {
    let mut shown: String = line.chars().take(SHOWN_CHARACTERS).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    format!("ignored `{shown}`, which is {error}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Timestamp;

    #[test]
    fn a_wish_is_a_name_and_a_time() {
        let seconds = |n| Wait::For(Duration::from_secs(n));
        assert_eq!(read("retry-after: 30s"), Some(Ok(Wish::RetryAfter(seconds(30)))));
        assert_eq!(read("  Retry-After:1h 30m\r"), Some(Ok(Wish::RetryAfter(seconds(5_400)))));
        assert_eq!(read("snooze: 10m"), Some(Ok(Wish::Snooze(seconds(600)))));
        let until = Wait::Until(Timestamp::from_millis(1_764_528_000_000));
        assert_eq!(read("snooze: 2025-11-30T20:40:00+02:00"), Some(Ok(Wish::Snooze(until))));
    }

    #[test]
    fn other_lines_are_no_wishes_and_broken_ones_are_remarked() {
        for line in ["", "done", "retry after 30s", "note: retry-after: 30s", "retry-after 30s"] {
            assert_eq!(read(line), None, "{line}");
        }
        for value in ["", "soon", "30", "-5m", "@17", "2026-03-01T09:30:00", "999999999999d"] {
            let remark = read(&format!("retry-after: {value}")).unwrap().unwrap_err();
            assert!(remark.starts_with("ignored `retry-after:"), "{remark}");
        }
        let remark = read(&format!("snooze: {}", "x".repeat(5_000))).unwrap().unwrap_err();
        assert!(remark.len() < 200 && remark.contains('…'), "{remark}");
    }
}
