//! What a child answers.

use serde::Deserialize;

use crate::handler::{Outcome, Wait};
use crate::model::{Failure, FailureKind, parse_duration};

/// What is shown of a line that cannot be understood.
const SHOWN_BYTES: usize = 200;

/// A child's word on one delivery.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) id: String,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Done,
    Failed { message: String, retry_after: Option<Wait> },
    Snoozed(Wait),
    Dead { message: String },
}

/// An answer as it is written. What it holds beyond this is left to the future.
#[derive(Deserialize)]
struct RawAnswer {
    id: String,
    ok: Option<bool>,
    error: Option<String>,
    retry_after: Option<RawDelay>,
    snooze: Option<RawDelay>,
    dead: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawDelay {
    Text(String),
    Seconds(f64),
}

/// The answers of a line: one object, or an array of them.
///
/// # Errors
/// Says what is wrong with the line.
pub(super) fn parse(line: &[u8]) -> Result<Vec<Answer>, String> {
    let is_array = line.trim_ascii_start().starts_with(b"[");
    let raw = if is_array {
        serde_json::from_slice::<Vec<RawAnswer>>(line)
    } else {
        serde_json::from_slice::<RawAnswer>(line).map(|one| vec![one])
    };
    raw.map_err(|error| error.to_string())?.into_iter().map(RawAnswer::check).collect()
}

impl RawAnswer {
    fn check(self) -> Result<Answer, String> {
        let is_dead = self.dead == Some(true);
        if let Some(snooze) = self.snooze {
            if self.ok.is_some() || self.error.is_some() || is_dead || self.retry_after.is_some() {
                return Err("`snooze` stands beside another verdict".to_owned());
            }
            return Ok(Answer { id: self.id, verdict: Verdict::Snoozed(snooze.check("snooze")?) });
        }
        let retry_after = self.retry_after.map(|delay| delay.check("retry_after")).transpose()?;
        let verdict = match (self.ok, self.error) {
            (Some(true), None) if !is_dead && retry_after.is_none() => Verdict::Done,
            (Some(true), _) => return Err("`ok` is true beside `error`, `dead` or `retry_after`".to_owned()),
            (None, None) => return Err("neither `ok` nor `error` nor `snooze`".to_owned()),
            (_, error) => {
                let message = error.unwrap_or_else(|| "the command gave no reason".to_owned());
                if is_dead { Verdict::Dead { message } } else { Verdict::Failed { message, retry_after } }
            }
        };
        Ok(Answer { id: self.id, verdict })
    }
}

impl RawDelay {
    fn check(self, field: &str) -> Result<Wait, String> {
        match self {
            RawDelay::Text(text) => text.parse().map_err(|error| format!("{field}: {error}")),
            RawDelay::Seconds(seconds) => parse_duration(&format!("{}ms", (seconds * 1e3).round()))
                .map(Wait::For)
                .map_err(|_| format!("{field}: {seconds} is no number of seconds")),
        }
    }
}

impl Verdict {
    /// What the dispatcher is told.
    pub(super) fn into_outcome(self) -> Outcome {
        match self {
            Verdict::Done => Outcome::Succeeded,
            Verdict::Failed { message, retry_after: None } => Outcome::failed(message),
            Verdict::Failed { message, retry_after: Some(wait) } => {
                Outcome::RetryAfter { failure: Failure::new(FailureKind::Failed, message), wait }
            }
            Verdict::Snoozed(wait) => Outcome::Snoozed(wait),
            Verdict::Dead { message } => Outcome::rejected(message),
        }
    }
}

/// The beginning of a line, for a message.
pub(super) fn shown(line: &[u8]) -> String {
    let cut = &line[..line.len().min(SHOWN_BYTES)];
    let text = String::from_utf8_lossy(cut);
    if cut.len() < line.len() { format!("{text}…") } else { text.into_owned() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn verdict(members: &str) -> Result<Verdict, String> {
        parse(format!(r#"{{"id": "d-1", {members}}}"#).as_bytes()).map(|answers| answers[0].verdict.clone())
    }

    fn failed(message: &str, retry_after: Option<u64>) -> Result<Verdict, String> {
        let retry_after = retry_after.map(|millis| Wait::For(Duration::from_millis(millis)));
        Ok(Verdict::Failed { message: message.into(), retry_after })
    }

    #[test]
    fn an_answer_is_a_success_a_failure_or_the_end() {
        assert_eq!(verdict(r#""ok": true"#), Ok(Verdict::Done));
        assert_eq!(verdict(r#""ok": true, "error": null, "took": 3"#), Ok(Verdict::Done));
        assert_eq!(verdict(r#""error": "no""#), failed("no", None));
        assert_eq!(verdict(r#""ok": false"#), failed("the command gave no reason", None));
        assert_eq!(verdict(r#""error": "no", "retry_after": "2m""#), failed("no", Some(120_000)));
        assert_eq!(verdict(r#""error": "no", "retry_after": 1.5"#), failed("no", Some(1_500)));
        assert_eq!(verdict(r#""snooze": "10m""#), Ok(Verdict::Snoozed(Wait::For(Duration::from_secs(600)))));
        let dead = Ok(Verdict::Dead { message: "never".into() });
        assert_eq!(verdict(r#""error": "never", "dead": true, "retry_after": 5"#), dead);
    }

    #[test]
    fn what_contradicts_itself_or_says_nothing_is_refused() {
        for members in [
            r#""ok": true, "error": "no""#,
            r#""ok": true, "dead": true"#,
            r#""ok": true, "snooze": "10m""#,
            r#""error": "no", "snooze": "10m""#,
            r#""snooze": "soon""#,
            r#""ok": true, "retry_after": 5"#,
            r#""dead": true"#,
            r#""error": {"code": 5}"#,
            r#""ok": "yes""#,
            r#""error": "no", "retry_after": -1"#,
            r#""error": "no", "retry_after": 1e300"#,
            r#""error": "no", "retry_after": "soon""#,
        ] {
            assert!(verdict(members).is_err(), "{members}");
        }
        for line in [
            "",
            "ok",
            "{}",
            r#"{"ok": true}"#,
            r#"{"id": 7, "ok": true}"#,
            r#"[{"id": "d"}]"#,
            "[1]",
            "\u{0}",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(parse(&[b'"', 0xff, b'"']).is_err());
    }

    #[test]
    fn an_array_holds_many() {
        let answers = parse(br#" [{"id": "a", "ok": true}, {"id": "b", "error": "no"}]"#).unwrap();
        let ids: Vec<_> = answers.iter().map(|answer| answer.id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(parse(b"[]"), Ok(vec![]));
    }

    #[test]
    fn a_long_line_is_shown_in_part() {
        assert_eq!(shown(b"short \xff"), "short \u{fffd}");
        let long = shown(&[b'x'; 1_000]);
        assert!(long.len() < 210 && long.ends_with('…'));
    }
}
