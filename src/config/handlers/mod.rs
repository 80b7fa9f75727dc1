//! The handlers file: which commands a worker runs for which events, and how.
//!
//! ```toml
//! [handlers.projector]
//! types = ["order.*"]
//! command = ["./project.sh", "--verbose"]
//! timeout = "2m"
//! ```
//!
//! A commented example of every key is in `examples/handlers/handlers.toml`.

mod entry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::redact;
use crate::model::{Rate, RetryPolicy, TypePattern};

/// A handlers file that cannot be used: where, what, and why.
#[derive(Debug, thiserror::Error)]
pub enum HandlersError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not the TOML that was expected.
    #[error("{} is not a valid handlers file: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with secrets masked.
        reason: String,
    },
    /// It has a key that means nothing, such as a misspelt one.
    #[error("{}: `{key}` is unknown", .path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key, as a path.
        key: String,
    },
    /// A handler has a value that cannot be used.
    #[error("{}: handler `{handler}`: {field}: {reason}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The handler.
        handler: String,
        /// The key, below the handler's.
        field: &'static str,
        /// What is wrong with the value.
        reason: String,
    },
    /// It has no handler at all.
    #[error("{} has no [handlers.NAME]", .0.display())]
    Empty(PathBuf),
}

impl HandlersError {
    /// What to do next, where there is more to say than the error does.
    pub fn hint(&self) -> Option<String> {
        match self {
            HandlersError::UnknownKey { key, .. } if key.starts_with("handlers.") => {
                let known = entry::KEYS.join(", ");
                Some(format!("a handler knows: {known}; a name with dots stands in quotes: [handlers.\"a.b\"]"))
            }
            HandlersError::UnknownKey { .. } | HandlersError::Empty(_) => Some(
                "a handler looks like this:\n  [handlers.mailer]\n  types = [\"order.*\"]\n  shell = \"./mail.sh\""
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// A handlers file that was read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlersFile {
    /// The handlers, by name.
    pub handlers: Vec<HandlerConfig>,
}

/// One handler of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerConfig {
    /// Its id, which deliveries name.
    pub id: String,
    /// The event types that it subscribes to.
    pub types: Vec<TypePattern>,
    /// What to run.
    pub run: Run,
    /// How it gets its deliveries.
    pub mode: Mode,
    /// How many deliveries it gets at a time, in an array; `None` for one, as it is.
    pub batch: Option<usize>,
    /// Where to run it.
    pub workdir: PathBuf,
    /// Variables that are set for it.
    pub env: BTreeMap<String, String>,
    /// Variables that it inherits from the worker.
    pub inherit_env: Vec<String>,
    /// For a transactional handler, the collections that it may write to.
    pub writes: Option<Vec<String>>,
    /// How many run at once.
    pub concurrency: Option<usize>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How long a lease lasts.
    pub lease: Option<Duration>,
    /// How long from TERM to KILL.
    pub kill_after: Option<Duration>,
    /// After how many attempts a delivery is dead.
    pub max_attempts: Option<u32>,
    /// When a failed attempt is tried again.
    pub retry: Option<RetryPolicy>,
    /// When a worker leaves it alone for a while.
    pub breaker: Option<BreakerConfig>,
    /// How often an attempt begins at the most, in each worker.
    pub rate: Option<Rate>,
    /// What it gets on stdin.
    pub stdin: Stdin,
    /// Exit codes with another meaning than by default.
    pub exit_codes: ExitCodes,
    /// What to run once for each delivery that is given up.
    pub on_dead: Option<Run>,
    /// The name or number of the user to run it as.
    pub user: Option<String>,
    /// The name or number of the group to run it as.
    pub group: Option<String>,
    /// How much to lower its priority, from -20 to 19.
    pub nice: Option<i8>,
}

/// The circuit breaker of a handler; what is absent is as by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerConfig {
    /// It has none.
    Off,
    /// It has one.
    On {
        /// So many failures in a row open it.
        failures: Option<u32>,
        /// The first pause.
        pause: Option<Duration>,
        /// The longest pause.
        max: Option<Duration>,
    },
}

/// What a handler gets on stdin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    /// The envelope.
    #[default]
    Json,
    /// The payload alone.
    Payload,
    /// A CloudEvent.
    CloudEvents {
        /// Where events come from, a URI reference.
        source: String,
    },
}

/// Exit codes that mean something else than by default. None is in two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitCodes {
    /// The work is done.
    pub done: Vec<u8>,
    /// No attempt can succeed.
    pub bury: Vec<u8>,
    /// Tried again.
    pub retry: Vec<u8>,
}

/// How a command gets its deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A process for each.
    #[default]
    Process,
    /// As lines to a process that stays.
    Lines,
}

impl Mode {
    /// As it is written in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Process => "process",
            Mode::Lines => "lines",
        }
    }
}

/// What a handler runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// A program and its arguments.
    Command {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// A line for `sh -c`.
    Shell(String),
}

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    handlers: BTreeMap<String, entry::RawHandler>,
}

impl HandlersFile {
    /// Reads the file at `path`. Relative paths in it start at its own directory.
    ///
    /// # Errors
    /// Names the file, and the handler and key that cannot be used.
    pub fn load(path: &Path) -> Result<HandlersFile, HandlersError> {
        let unreadable = |source| HandlersError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let absolute = std::path::absolute(path).map_err(unreadable)?;
        let directory = absolute.parent().unwrap_or(Path::new("/"));
        HandlersFile::parse(&text, path, directory)
    }

    /// Reads the text of the file at `path`; relative paths in it start at `directory`.
    ///
    /// # Errors
    /// Names the file, and the handler and key that cannot be used.
    pub fn parse(text: &str, path: &Path, directory: &Path) -> Result<HandlersFile, HandlersError> {
        let raw = parse_toml(text, path)?;
        if raw.handlers.is_empty() {
            return Err(HandlersError::Empty(path.to_owned()));
        }
        let checked = raw.handlers.into_iter().map(|(id, raw)| {
            raw.check(&id, directory).map_err(|entry::Refusal { field, reason }| HandlersError::Invalid {
                path: path.to_owned(),
                handler: id,
                field,
                reason,
            })
        });
        Ok(HandlersFile { handlers: checked.collect::<Result<_, _>>()? })
    }

    /// The ids of the handlers that subscribe to an event type, by name.
    pub fn subscribers(&self, event_type: &str) -> Vec<&str> {
        let subscribes = |handler: &&HandlerConfig| handler.types.iter().any(|one| one.matches(event_type));
        self.handlers.iter().filter(subscribes).map(|handler| handler.id.as_str()).collect()
    }
}

fn parse_toml(text: &str, path: &Path) -> Result<RawFile, HandlersError> {
    let malformed = |error: toml::de::Error| HandlersError::Malformed {
        path: path.to_owned(),
        reason: redact(error.to_string().trim_end()),
    };
    let mut unknown = None;
    let deserializer = toml::Deserializer::parse(text).map_err(malformed)?;
    let remember = |key: serde_ignored::Path<'_>| _ = unknown.get_or_insert(key.to_string());
    let raw = serde_ignored::deserialize(deserializer, remember).map_err(malformed)?;
    match unknown {
        // Paths of optional members have a `?`, which is no part of the key.
        Some(key) => Err(HandlersError::UnknownKey { path: path.to_owned(), key: key.replace(".?", "") }),
        None => Ok(raw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HandlersFile, HandlersError> {
        HandlersFile::parse(text, Path::new("handlers.toml"), Path::new("/etc/outbox"))
    }

    fn refusal(handler: &str) -> String {
        parse(&format!("[handlers.mailer]\n{handler}")).unwrap_err().to_string()
    }

    const EXAMPLE: &str = include_str!("../../../examples/handlers/handlers.toml");

    #[test]
    fn the_example_is_valid_and_shows_every_key() {
        parse(EXAMPLE).unwrap();
        for key in entry::KEYS
            .iter()
            .chain(&entry::BACKOFF_KEYS)
            .chain(&entry::BREAKER_KEYS)
            .chain(&entry::EXIT_CODE_KEYS)
        {
            assert!(EXAMPLE.contains(&format!("{key} = ")), "the example does not show {key}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            [handlers."order.mailer"]
            types = ["order.placed.v1", "customer.*"]
            command = ["mail", "-s", "hello"]
            concurrency = 4
            timeout = "2m"
            lease = "5m"
            kill_after = "10s"
            max_attempts = 9
            backoff = { kind = "exponential", base = "2s", factor = 3, max = "1h", jitter = 0.5 }
            breaker = { failures = 5, pause = "10s", max = "2m" }
            rate = "100/m"
            env = { MODE = "live" }
            inherit_env = ["SMTP_HOST"]
            transactional = true
            writes = ["mails"]
            workdir = "mail"
            stdin = "cloudevents"
            source = "/shop"
            exit_codes = { done = [3], bury = [4, 5], retry = [65] }
            on_dead = ["notify", "--dead"]
            user = "mail"
            group = 8
            nice = 10

            [handlers.stays]
            types = ["*"]
            shell = "read-lines"
            mode = "lines"
            batch = 20
        "#;
        let file = parse(text).unwrap();
        let expected = HandlerConfig {
            id: "order.mailer".into(),
            types: vec!["order.placed.v1".parse().unwrap(), "customer.*".parse().unwrap()],
            run: Run::Command { program: "mail".into(), arguments: vec!["-s".into(), "hello".into()] },
            mode: Mode::Process,
            batch: None,
            workdir: "/etc/outbox/mail".into(),
            env: BTreeMap::from([("MODE".into(), "live".into())]),
            inherit_env: vec!["SMTP_HOST".into()],
            writes: Some(vec!["mails".into()]),
            concurrency: Some(4),
            timeout: Some(Duration::from_secs(120)),
            lease: Some(Duration::from_secs(300)),
            kill_after: Some(Duration::from_secs(10)),
            max_attempts: Some(9),
            retry: Some(RetryPolicy::Exponential {
                base: Duration::from_secs(2),
                factor: 3.0,
                cap: Duration::from_secs(3_600),
                jitter: 0.5,
            }),
            breaker: Some(BreakerConfig::On {
                failures: Some(5),
                pause: Some(Duration::from_secs(10)),
                max: Some(Duration::from_secs(120)),
            }),
            rate: Some("100/m".parse().unwrap()),
            stdin: Stdin::CloudEvents { source: "/shop".into() },
            exit_codes: ExitCodes { done: vec![3], bury: vec![4, 5], retry: vec![65] },
            on_dead: Some(Run::Command { program: "notify".into(), arguments: vec!["--dead".into()] }),
            user: Some("mail".into()),
            group: Some("8".into()),
            nice: Some(10),
        };
        assert_eq!(file.handlers[0], expected);
        assert_eq!((file.handlers[1].mode, file.handlers[1].batch), (Mode::Lines, Some(20)));
    }

    #[test]
    fn subscribers_are_found_by_their_patterns() {
        let text = r#"
            [handlers.all]
            types = ["*"]
            shell = "true"
            [handlers.orders]
            types = ["order.*", "order.placed"]
            shell = "true"
            [handlers.placed]
            types = ["order.placed"]
            shell = "true"
        "#;
        let file = parse(text).unwrap();
        assert_eq!(file.subscribers("order.placed"), ["all", "orders", "placed"]);
        assert_eq!(file.subscribers("order.paid"), ["all", "orders"]);
        assert_eq!(file.subscribers("user.left"), ["all"]);
    }

    #[test]
    fn a_refusal_names_file_handler_and_key() {
        let types = "types = ['*']\n";
        assert_eq!(
            refusal("shell = 'true'"),
            "handlers.toml: handler `mailer`: types: say which event types it is for, such as [\"order.*\"] or [\"*\"]"
        );
        let of =
            |rest: &str| refusal(&format!("{types}{rest}")).replace("handlers.toml: handler `mailer`: ", "");
        assert_eq!(of(""), "command: give either command = [\"PROGRAM\", ...] or shell = \"LINE\"");
        assert_eq!(
            of("shell = 'true'\ncommand = ['true']"),
            "command: give either command = [\"PROGRAM\", ...] or shell = \"LINE\", not both"
        );
        assert_eq!(of("command = []"), "command: must name a program");
        assert_eq!(of("shell = ' '"), "shell: must not be empty");
        assert_eq!(
            of("shell = 'true'\ntimeout = '5'"),
            "timeout: `5` is not a duration such as 90s, 15m, 2h, 7d or 1w"
        );
        assert_eq!(
            of("shell = 'true'\ninherit_env = ['RELAYCTL_STORE']"),
            "inherit_env: RELAYCTL_STORE holds the store's URL, which no child gets to see"
        );
        assert_eq!(
            of("shell = 'true'\nenv = { RELAY_KEY = 'x' }"),
            "env: RELAY_KEY: names that begin with RELAY_ are the worker's own"
        );
        assert_eq!(
            of("shell = 'true'\nenv = { 'A=B' = 'x' }"),
            "env: `A=B` cannot be the name of a variable"
        );
        for batch in [0, 1_001] {
            assert_eq!(of(&format!("shell = 'true'\nbatch = {batch}")), "batch: must be from 1 to 1000");
        }
        assert!(of("shell = 'true'\nmode = 'stream'").contains("unknown variant `stream`"));
        assert_eq!(of("shell = \"a\\u0000b\""), "shell: must not contain a NUL character");
        let rest = |rest: &str| of(&format!("shell = 'true'\n{rest}"));
        assert_eq!(rest("source = '/shop'"), "source: is for stdin = \"cloudevents\" alone");
        for source in ["", "a b", "<x>"] {
            let refused = rest(&format!("stdin = 'cloudevents'\nsource = '{source}'"));
            assert_eq!(refused, "source: must be a URI or the path of one, such as /shop/orders");
        }
        assert_eq!(
            rest("exit_codes = { done = [0, 3], bury = [3] }"),
            "exit_codes: 3 is there twice, and can mean one thing only"
        );
        assert_eq!(rest("on_dead = ' '"), "on_dead: must not be empty");
        assert_eq!(rest("on_dead = []"), "on_dead: must name a program");
        assert_eq!(rest("nice = 20"), "nice: must be from -20 (first) to 19 (last)");
        assert_eq!(rest("user = ''"), "user: must not be empty");
        for broken in ["stdin = 'xml'", "exit_codes = { done = [256] }", "on_dead = 5", "group = -1"] {
            assert!(rest(broken).contains("not a valid handlers file"), "{broken}");
        }
        assert!(refusal("types = ['*.v1']\nshell = 'true'").contains("types: `*.v1` is not a type pattern"));
    }

    #[test]
    fn what_answers_delivery_by_delivery_is_neither_transactional_nor_told_in_other_forms() {
        let field = |lines: &str| {
            let text = format!("[handlers.m]\ntypes = ['*']\nshell = 'true'\n{lines}");
            match parse(&text) {
                Err(HandlersError::Invalid { field, .. }) => Some(field),
                Err(other) => panic!("{lines}: {other}"),
                Ok(_) => None,
            }
        };
        for lines in ["mode = 'lines'", "batch = 10"] {
            assert_eq!(field(&format!("{lines}\ntransactional = true")), Some("transactional"));
            assert_eq!(field(&format!("{lines}\nstdin = 'payload'")), Some("stdin"));
            assert_eq!(field(&format!("{lines}\nstdin = 'json'")), None);
        }
        assert_eq!(field("mode = 'lines'\nexit_codes = { done = [3] }"), Some("exit_codes"));
        assert_eq!(field("batch = 10\nexit_codes = { bury = [3] }"), None);
    }

    #[test]
    fn a_transactional_handler_names_what_it_writes_to() {
        let read = |lines: &str| {
            let text = format!("[handlers.m]\ntypes = ['*']\nshell = 'true'\n{lines}");
            parse(&text).map(|file| file.handlers[0].writes.clone()).map_err(|error| error.to_string())
        };
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("transactional = false"), Ok(None));
        assert_eq!(read("transactional = true"), Ok(Some(vec![])));
        assert_eq!(
            read("transactional = true\nwrites = ['a', 'b.c']"),
            Ok(Some(vec!["a".into(), "b.c".into()]))
        );
        let refusal = |lines: &str| read(lines).unwrap_err().replace("handlers.toml: handler `m`: ", "");
        let stray = "writes: is for a handler with transactional = true";
        assert_eq!(refusal("writes = ['a']"), stray);
        assert_eq!(refusal("transactional = false\nwrites = []"), stray);
        for name in ["", "a$b", "a\\u0000", "system.users"] {
            let error = refusal(&format!("transactional = true\nwrites = [\"{name}\"]"));
            assert!(error.ends_with("cannot be a collection of yours"), "{error}");
        }
    }

    #[test]
    fn a_back_off_has_only_what_its_kind_knows() {
        let backoff = |members: &str| {
            let text = format!("[handlers.m]\ntypes = ['*']\nshell = 'true'\nbackoff = {{ {members} }}");
            parse(&text).map(|file| file.handlers[0].retry.clone()).map_err(|error| error.to_string())
        };
        let seconds = Duration::from_secs;
        assert_eq!(
            backoff("kind = 'fixed', base = '7s'"),
            Ok(Some(RetryPolicy::Fixed { delay: seconds(7) }))
        );
        let linear = RetryPolicy::Linear { base: seconds(1), cap: seconds(9) };
        assert_eq!(backoff("kind = 'linear', max = '9s'"), Ok(Some(linear)));
        assert_eq!(backoff(""), Ok(Some(RetryPolicy::default())));
        for (members, reason) in [
            ("kind = 'fixed', jitter = 0.1", "backoff: a fixed back-off knows no jitter"),
            ("kind = 'linear', factor = 2.0", "backoff: a linear back-off knows no factor"),
            ("factor = 0.5", "backoff: factor must be at least 1"),
            ("factor = nan", "backoff: factor must be at least 1"),
            ("jitter = 1.5", "backoff: jitter must be from 0 to 1"),
            ("base = '2m'", "backoff: base must not be longer than max, which is 1m"),
            ("kind = 'cubic'", "cubic"),
        ] {
            let error = backoff(members).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_breaker_is_off_or_a_table() {
        let breaker = |value: &str| {
            let text = format!("[handlers.m]\ntypes = ['*']\nshell = 'true'\nbreaker = {value}");
            parse(&text).map(|file| file.handlers[0].breaker).map_err(|error| error.to_string())
        };
        assert_eq!(breaker("'off'"), Ok(Some(BreakerConfig::Off)));
        let as_by_default = BreakerConfig::On { failures: None, pause: None, max: None };
        assert_eq!(breaker("{}"), Ok(Some(as_by_default)));
        for (value, reason) in [
            ("'on'", "off"),
            ("true", "a table such as { failures = 10"),
            ("{ failures = 0 }", "breaker: failures must be at least 1"),
            ("{ pause = '5' }", "breaker: `5` is not a duration"),
            ("{ failure = 3 }", "`handlers.m.breaker.failure` is unknown"),
        ] {
            let error = breaker(value).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(
            refusal("types = ['*']\nshell = 'true'\nrate = 'often'").contains("rate: `often` is not a rate")
        );
    }

    #[test]
    fn what_is_unknown_is_refused_with_a_hint() {
        let error = parse("[handlers.m]\ntypes = ['*']\nshell = 'true'\ntime_out = '5s'").unwrap_err();
        assert_eq!(error.to_string(), "handlers.toml: `handlers.m.time_out` is unknown");
        assert!(error.hint().unwrap().contains("timeout"));
        let nested =
            parse("[handlers.m]\ntypes = ['*']\nshell = 'true'\nbackoff = { cap = '5s' }").unwrap_err();
        assert_eq!(nested.to_string(), "handlers.toml: `handlers.m.backoff.cap` is unknown");
        let code =
            parse("[handlers.m]\ntypes = ['*']\nshell = 'true'\nexit_codes = { ok = [1] }").unwrap_err();
        assert_eq!(code.to_string(), "handlers.toml: `handlers.m.exit_codes.ok` is unknown");
        let dotted = parse("[handlers.order.mailer]\ntypes = ['*']\nshell = 'true'").unwrap_err();
        assert!(dotted.hint().unwrap().contains("quotes"), "{dotted}");
        assert!(parse("").unwrap_err().to_string().contains("has no [handlers.NAME]"));
        assert!(parse("[handler.m]").unwrap_err().to_string().contains("`handler` is unknown"));
    }
}
