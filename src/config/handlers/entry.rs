//! One entry of the handlers file, as it is written, and the checks that it has to pass.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{BreakerConfig, ExitCodes, HandlerConfig, Mode, Run, Stdin};
use crate::model::{Rate, RetryPolicy, TypePattern, parse_duration};

/// The keys that a handler may have.
pub(super) const KEYS: [&str; 25] = [
    "types",
    "command",
    "shell",
    "mode",
    "batch",
    "workdir",
    "env",
    "inherit_env",
    "transactional",
    "writes",
    "concurrency",
    "timeout",
    "lease",
    "kill_after",
    "max_attempts",
    "backoff",
    "breaker",
    "rate",
    "stdin",
    "source",
    "exit_codes",
    "on_dead",
    "user",
    "group",
    "nice",
];

/// The keys of a handler's `exit_codes`.
#[cfg(test)]
pub(super) const EXIT_CODE_KEYS: [&str; 3] = ["done", "bury", "retry"];

/// The keys of a handler's `backoff`.
#[cfg(test)]
pub(super) const BACKOFF_KEYS: [&str; 5] = ["kind", "base", "factor", "max", "jitter"];

/// The keys of a handler's `breaker`.
#[cfg(test)]
pub(super) const BREAKER_KEYS: [&str; 3] = ["failures", "pause", "max"];

/// The variable that holds the store's URL.
const STORE_VARIABLE: &str = "RELAYCTL_STORE";

/// What the names of the variables begin with that the worker sets itself.
const OWN_VARIABLES: &str = "RELAY_";

/// The longest name of a collection, database and all, that MongoDB takes
/// (<https://www.mongodb.com/docs/manual/reference/limits/>).
const MAX_COLLECTION_BYTES: usize = 255;

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
    #[serde(default)]
    transactional: bool,
    writes: Option<Vec<String>>,
    concurrency: Option<usize>,
    timeout: Option<String>,
    lease: Option<String>,
    kill_after: Option<String>,
    max_attempts: Option<u32>,
    backoff: Option<RawBackoff>,
    breaker: Option<RawBreaker>,
    rate: Option<String>,
    stdin: Option<RawStdin>,
    source: Option<String>,
    exit_codes: Option<RawExitCodes>,
    on_dead: Option<RawRun>,
    user: Option<RawName>,
    group: Option<RawName>,
    nice: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawStdin {
    Json,
    Payload,
    CloudEvents,
}

#[derive(Deserialize)]
struct RawExitCodes {
    #[serde(default)]
    done: Vec<u8>,
    #[serde(default)]
    bury: Vec<u8>,
    #[serde(default)]
    retry: Vec<u8>,
}

/// A command, or a line for the shell.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a line for the shell, or a list of a program and its arguments")]
enum RawRun {
    Shell(String),
    Command(Vec<String>),
}

/// The name or the number of a user or group.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a name or a number")]
enum RawName {
    Number(u32),
    Name(String),
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
        self.check_mixture()?;
        Ok(HandlerConfig {
            id: id.to_owned(),
            types: types(&self.types)?,
            run: run(self.command, self.shell)?,
            mode: self.mode,
            batch: batch(self.batch)?,
            workdir: self.workdir.map_or_else(|| directory.to_owned(), |workdir| directory.join(workdir)),
            env: variables(self.env)?,
            inherit_env: inherited(self.inherit_env)?,
            writes: writes(self.transactional, self.writes)?,
            concurrency: self.concurrency,
            timeout: duration("timeout", self.timeout.as_deref())?,
            lease: duration("lease", self.lease.as_deref())?,
            kill_after: duration("kill_after", self.kill_after.as_deref())?,
            max_attempts: self.max_attempts,
            retry: self.backoff.map(RawBackoff::check).transpose()?,
            breaker: self.breaker.map(RawBreaker::check).transpose()?,
            rate: rate(self.rate.as_deref())?,
            stdin: stdin(self.stdin, self.source)?,
            exit_codes: self.exit_codes.map(RawExitCodes::check).transpose()?.unwrap_or_default(),
            on_dead: self.on_dead.map(on_dead).transpose()?,
            user: self.user.map(|user| user.check("user")).transpose()?,
            group: self.group.map(|group| group.check("group")).transpose()?,
            nice: self.nice.map(nice).transpose()?,
        })
    }

    /// Refuses what makes no sense for a command that answers delivery by delivery.
    fn check_mixture(&self) -> Result<(), Refusal> {
        let stays = self.mode == Mode::Lines;
        if !stays && self.batch.is_none() {
            return Ok(());
        }
        if self.transactional {
            return refuse(
                "transactional",
                "needs a process for each delivery: neither mode = \"lines\" nor batch",
            );
        }
        if self.stdin.is_some_and(|stdin| stdin != RawStdin::Json) {
            return refuse(
                "stdin",
                "is the envelope, in which the answers find its id, with mode = \"lines\" or batch",
            );
        }
        if stays && self.exit_codes.is_some() {
            return refuse("exit_codes", "mean nothing with mode = \"lines\": the answers do");
        }
        Ok(())
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

/// Where events come from unless a handler says otherwise.
const DEFAULT_SOURCE: &str = "/relayctl";

fn stdin(stdin: Option<RawStdin>, source: Option<String>) -> Result<Stdin, Refusal> {
    match (stdin.unwrap_or(RawStdin::Json), source) {
        (RawStdin::CloudEvents, source) => {
            let source = source.unwrap_or_else(|| DEFAULT_SOURCE.to_owned());
            let is_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
            if source.is_empty() || !source.bytes().all(is_uri) {
                return refuse("source", "must be a URI or the path of one, such as /shop/orders");
            }
            Ok(Stdin::CloudEvents { source })
        }
        (_, Some(_)) => refuse("source", r#"is for stdin = "cloudevents" alone"#),
        (RawStdin::Json, None) => Ok(Stdin::Json),
        (RawStdin::Payload, None) => Ok(Stdin::Payload),
    }
}

fn on_dead(raw: RawRun) -> Result<Run, Refusal> {
    let (command, shell) = match raw {
        RawRun::Shell(line) => (None, Some(line)),
        RawRun::Command(argv) => (Some(argv), None),
    };
    run(command, shell).map_err(|refusal| Refusal { field: "on_dead", ..refusal })
}

impl RawName {
    fn check(self, field: &'static str) -> Result<String, Refusal> {
        match self {
            RawName::Number(number) => Ok(number.to_string()),
            RawName::Name(name) if name.is_empty() => refuse(field, "must not be empty"),
            RawName::Name(name) => without_nul(field, name),
        }
    }
}

fn nice(adjustment: i64) -> Result<i8, Refusal> {
    let inside = i8::try_from(adjustment).ok().filter(|adjustment| (-20..=19).contains(adjustment));
    inside.map_or_else(|| refuse("nice", "must be from -20 (first) to 19 (last)"), Ok)
}

impl RawExitCodes {
    fn check(self) -> Result<ExitCodes, Refusal> {
        let RawExitCodes { done, bury, retry } = self;
        let mut all: Vec<u8> = [&done[..], &bury, &retry].concat();
        all.sort_unstable();
        if let Some(twice) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse("exit_codes", format!("{} is there twice, and can mean one thing only", twice[0]));
        }
        Ok(ExitCodes { done, bury, retry })
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

/// The collections of a transactional handler; `None` for one that is not.
fn writes(transactional: bool, collections: Option<Vec<String>>) -> Result<Option<Vec<String>>, Refusal> {
    if !transactional {
        return match collections {
            None => Ok(None),
            Some(_) => refuse("writes", "is for a handler with transactional = true"),
        };
    }
    let collections = collections.unwrap_or_default();
    let is_no_name = |name: &&String| {
        name.is_empty()
            || name.contains(['$', '\0'])
            || name.starts_with("system.")
            || name.len() > MAX_COLLECTION_BYTES
    };
    match collections.iter().find(is_no_name) {
        Some(name) => refuse("writes", format!("`{}` cannot be a collection of yours", name.escape_debug())),
        None => Ok(Some(collections)),
    }
}

fn rate(text: Option<&str>) -> Result<Option<Rate>, Refusal> {
    text.map(str::parse).transpose().or_else(|error| refuse("rate", format!("{error}")))
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

/// The circuit breaker as it is written: `"off"`, or a table.
enum RawBreaker {
    Off,
    On(RawBreakerTable),
}

#[derive(Deserialize)]
struct RawBreakerTable {
    failures: Option<u32>,
    pause: Option<String>,
    max: Option<String>,
}

/// By hand, since the derived form for either of two keeps unknown keys from being noticed.
impl<'de> Deserialize<'de> for RawBreaker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawBreaker;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"off\", or a table such as { failures = 10, pause = \"30s\", max = \"10m\" }")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RawBreaker, E> {
                match text {
                    "off" => Ok(RawBreaker::Off),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawBreaker, A::Error> {
                RawBreakerTable::deserialize(MapAccessDeserializer::new(map)).map(RawBreaker::On)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl RawBreaker {
    /// What is not given is that of the default policy, which the worker knows.
    fn check(self) -> Result<BreakerConfig, Refusal> {
        let RawBreaker::On(table) = self else { return Ok(BreakerConfig::Off) };
        if table.failures == Some(0) {
            return refuse("breaker", "failures must be at least 1; to have none write breaker = \"off\"");
        }
        Ok(BreakerConfig::On {
            failures: table.failures,
            pause: duration("breaker", table.pause.as_deref())?,
            max: duration("breaker", table.max.as_deref())?,
        })
    }
}

fn knows_none(kind: &str, strays: &[(&str, bool)]) -> Result<(), Refusal> {
    match strays.iter().find(|(_, is_given)| *is_given) {
        Some((stray, _)) => refuse("backoff", format!("a {kind} back-off knows no {stray}")),
        None => Ok(()),
    }
}
