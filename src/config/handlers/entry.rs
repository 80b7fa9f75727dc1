//! One entry of the handlers file, as it is written, and the checks that it has to pass.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{HandlerConfig, Mode, Run};
use crate::model::{RetryPolicy, TypePattern, parse_duration};

/// The keys that a handler may have.
pub(super) const KEYS: [&str; 14] = [
    "types",
    "command",
    "shell",
    "mode",
    "batch",
    "workdir",
    "env",
    "inherit_env",
    "concurrency",
    "timeout",
    "lease",
    "kill_after",
    "max_attempts",
    "backoff",
];

/// The keys of a handler's `backoff`.
#[cfg(test)]
pub(super) const BACKOFF_KEYS: [&str; 5] = ["kind", "base", "factor", "max", "jitter"];

/// The variable that holds the store's URL.
const STORE_VARIABLE: &str = "RELAYCTL_STORE";

/// What the names of the variables begin with that the worker sets itself.
const OWN_VARIABLES: &str = "RELAY_";

/// A worker holds no more than this.
const MAX_BATCH: usize = 1_000;

/// Why an entry cannot be used.
pub(super) struct Refusal {
    pub(super) field: &'static str,
    pub(super) reason: String,
}

fn refuse<T>(field: &'static str, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { field, reason: reason.into() })
}

/// A handler as it is written.
#[derive(Deserialize)]
pub(super) struct RawHandler {
    #[serde(default)]
    types: Vec<String>,
    command: Option<Vec<String>>,
    shell: Option<String>,
    #[serde(default)]
    mode: Mode,
    batch: Option<usize>,
    workdir: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    inherit_env: Vec<String>,
    concurrency: Option<usize>,
    timeout: Option<String>,
    lease: Option<String>,
    kill_after: Option<String>,
    max_attempts: Option<u32>,
    backoff: Option<RawBackoff>,
}

#[derive(Deserialize)]
struct RawBackoff {
    #[serde(default)]
    kind: BackoffKind,
    base: Option<String>,
    factor: Option<f64>,
    max: Option<String>,
    jitter: Option<f64>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BackoffKind {
    Fixed,
    Linear,
    #[default]
    Exponential,
}

impl RawHandler {
    /// Checks everything that does not depend on the other settings of a worker.
    pub(super) fn check(self, id: &str, directory: &Path) -> Result<HandlerConfig, Refusal> {
        Ok(HandlerConfig {
            id: id.to_owned(),
            types: types(&self.types)?,
            run: run(self.command, self.shell)?,
            mode: self.mode,
            batch: batch(self.batch)?,
            workdir: self.workdir.map_or_else(|| directory.to_owned(), |workdir| directory.join(workdir)),
            env: variables(self.env)?,
            inherit_env: inherited(self.inherit_env)?,
            concurrency: self.concurrency,
            timeout: duration("timeout", self.timeout.as_deref())?,
            lease: duration("lease", self.lease.as_deref())?,
            kill_after: duration("kill_after", self.kill_after.as_deref())?,
            max_attempts: self.max_attempts,
            retry: self.backoff.map(RawBackoff::check).transpose()?,
        })
    }
}

fn types(patterns: &[String]) -> Result<Vec<TypePattern>, Refusal> {
    if patterns.is_empty() {
        return refuse("types", r#"say which event types it is for, such as ["order.*"] or ["*"]"#);
    }
    let parse = |pattern: &String| pattern.parse().or_else(|error| refuse("types", format!("{error}")));
    patterns.iter().map(parse).collect()
}

fn run(command: Option<Vec<String>>, shell: Option<String>) -> Result<Run, Refusal> {
    const EITHER: &str = r#"give either command = ["PROGRAM", ...] or shell = "LINE""#;
    match (command, shell) {
        (None, None) => refuse("command", EITHER),
        (Some(_), Some(_)) => refuse("command", format!("{EITHER}, not both")),
        (None, Some(line)) if line.trim().is_empty() => refuse("shell", "must not be empty"),
        (None, Some(line)) => Ok(Run::Shell(without_nul("shell", line)?)),
        (Some(argv), None) => {
            let argv = argv.into_iter().map(|argument| without_nul("command", argument));
            let mut argv = argv.collect::<Result<Vec<_>, _>>()?.into_iter();
            match argv.next().filter(|program| !program.is_empty()) {
                Some(program) => Ok(Run::Command { program, arguments: argv.collect() }),
                None => refuse("command", "must name a program"),
            }
        }
    }
}

fn batch(size: Option<usize>) -> Result<Option<usize>, Refusal> {
    match size {
        Some(size) if !(1..=MAX_BATCH).contains(&size) => {
            refuse("batch", format!("must be from 1 to {MAX_BATCH}"))
        }
        size => Ok(size),
    }
}

fn without_nul(field: &'static str, text: String) -> Result<String, Refusal> {
    if text.contains('\0') { refuse(field, "must not contain a NUL character") } else { Ok(text) }
}

fn variables(variables: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refusal> {
    for (name, value) in &variables {
        check_variable("env", name)?;
        without_nul("env", value.clone())?;
    }
    Ok(variables)
}

fn inherited(names: Vec<String>) -> Result<Vec<String>, Refusal> {
    for name in &names {
        check_variable("inherit_env", name)?;
        if name == STORE_VARIABLE {
            return refuse(
                "inherit_env",
                format!("{name} holds the store's URL, which no child gets to see"),
            );
        }
    }
    Ok(names)
}

fn check_variable(field: &'static str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return refuse(field, format!("`{}` cannot be the name of a variable", name.escape_debug()));
    }
    if name.starts_with(OWN_VARIABLES) {
        return refuse(field, format!("{name}: names that begin with {OWN_VARIABLES} are the worker's own"));
    }
    Ok(())
}

fn duration(field: &'static str, text: Option<&str>) -> Result<Option<Duration>, Refusal> {
    text.map(parse_duration).transpose().or_else(|error| refuse(field, error.to_string()))
}

impl RawBackoff {
    /// What is not given is that of the default policy.
    fn check(self) -> Result<RetryPolicy, Refusal> {
        const BASE: Duration = Duration::from_secs(1);
        const MAX: Duration = Duration::from_secs(60);
        let base = duration("backoff", self.base.as_deref())?.unwrap_or(BASE);
        let cap = duration("backoff", self.max.as_deref())?.unwrap_or(MAX);
        if self.kind != BackoffKind::Fixed && base > cap {
            let max = humantime::format_duration(cap);
            return refuse("backoff", format!("base must not be longer than max, which is {max}"));
        }
        let (has_factor, has_jitter) = (self.factor.is_some(), self.jitter.is_some());
        match self.kind {
            BackoffKind::Fixed => {
                knows_none(
                    "fixed",
                    &[("factor", has_factor), ("max", self.max.is_some()), ("jitter", has_jitter)],
                )?;
                Ok(RetryPolicy::Fixed { delay: base })
            }
            BackoffKind::Linear => {
                knows_none("linear", &[("factor", has_factor), ("jitter", has_jitter)])?;
                Ok(RetryPolicy::Linear { base, cap })
            }
            BackoffKind::Exponential => {
                let (factor, jitter) = (self.factor.unwrap_or(2.0), self.jitter.unwrap_or(0.2));
                if !(factor >= 1.0 && factor.is_finite()) {
                    return refuse("backoff", "factor must be at least 1");
                }
                if !(0.0..=1.0).contains(&jitter) {
                    return refuse("backoff", "jitter must be from 0 to 1");
                }
                Ok(RetryPolicy::Exponential { base, factor, cap, jitter })
            }
        }
    }
}

fn knows_none(kind: &str, strays: &[(&str, bool)]) -> Result<(), Refusal> {
    match strays.iter().find(|(_, is_given)| *is_given) {
        Some((stray, _)) => refuse("backoff", format!("a {kind} back-off knows no {stray}")),
        None => Ok(()),
    }
}
