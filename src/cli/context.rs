//! What every command is given: settings, terminal, clock, and a store that is opened when it is first needed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::error::{CliError, CliResult};
use super::exit::Exit;
use super::given::Given;
use super::render::time::Times;
use super::ui::Ui;
use crate::clock::{Clock as _, ServerClock, Skew};
use crate::config::Settings;
use crate::model::Timestamp;
use crate::store::{self, ErrorKind, OpenOptions, SetupProblem, Store, StoreError};

/// The part of the connect timeout that is kept for finding out why a server does not answer as it should, so that
/// the user has an answer when the whole is over.
const KEPT_FOR_DIAGNOSIS: f64 = 0.4;

/// How long closing the store may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// Everything that a command needs.
#[derive(Debug)]
pub struct Context {
    ui: Ui,
    settings: Settings,
    given: Given,
    connect_timeout: Duration,
    clock: ServerClock,
    store: OnceCell<Arc<dyn Store>>,
}

impl Context {
    /// A context with resolved settings.
    pub fn new(ui: Ui, settings: Settings, given: Given, connect_timeout: Duration) -> Self {
        Context { ui, settings, given, connect_timeout, clock: ServerClock::new(), store: OnceCell::new() }
    }

    /// The terminal.
    pub fn ui(&self) -> &Ui {
        &self.ui
    }

    /// The resolved settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which store the user named on the command line.
    pub fn given(&self) -> &Given {
        &self.given
    }

    /// The clock, which is set by the store's server when the store is opened.
    pub fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// The current time. What the store is told, and what is compared with what the store says, is read after the store was
    /// opened: before, it is the host's.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// How times are shown in tables.
    pub fn times(&self) -> Times {
        Times { style: self.settings.time.value, now: self.now() }
    }

    /// The store, opened on the first call. Later calls that find no server fail after the connect timeout.
    ///
    /// # Errors
    /// When none is configured, or it cannot be opened.
    pub async fn store(&self) -> CliResult<&Arc<dyn Store>> {
        self.patient_store(self.connect_timeout).await
    }

    /// The store for a command that outlives a failover: once open, its calls wait this long for a server.
    ///
    /// # Errors
    /// When none is configured, or it cannot be opened.
    pub async fn patient_store(&self, patience: Duration) -> CliResult<&Arc<dyn Store>> {
        self.store.get_or_try_init(|| self.open(patience)).await
    }

    /// The store, if it was opened.
    pub fn store_if_open(&self) -> Option<&Arc<dyn Store>> {
        self.store.get()
    }

    async fn open(&self, patience: Duration) -> CliResult<Arc<dyn Store>> {
        let url = self.settings.store_url()?;
        let options = OpenOptions {
            database: self.settings.database.as_ref().map(|database| database.value.clone()),
            prefix: self.settings.prefix.value.clone(),
            connect_timeout: self.connect_timeout.mul_f64(1.0 - KEPT_FOR_DIAGNOSIS),
            patience,
        };
        // The command must not go by a clock of which nobody knows whether it is right.
        let opening = async {
            let store = store::open(url.expose(), &options).await?;
            self.clock.measure(store.server_time()).await?;
            Ok(store)
        };
        let store = match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| self.cannot_open(error))?,
            Err(_) => return Err(self.no_answer(&url.to_string())),
        };
        self.ui.detail(&format!("connected to {}", store.location()));
        if let Some(skew) = self.clock.skew().filter(Skew::is_notable) {
            self.ui.detail(&format!("this host's clock is {skew}; times go by the server's"));
        }
        Ok(store)
    }

    /// A URL that cannot be used is a matter of the command line or configuration, and the user is told which.
    fn cannot_open(&self, error: StoreError) -> CliError {
        let is_the_url = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported);
        let error = CliError::from(error);
        match &self.settings.store {
            Some(store) if is_the_url => {
                let origin = format!("the URL comes from {}", store.origin);
                error.with_exit(Exit::Usage).with_hint(origin)
            }
            _ => error,
        }
    }

    fn no_answer(&self, shown_url: &str) -> CliError {
        let seconds = self.connect_timeout.as_secs_f64();
        CliError::new(Exit::Unavailable, format!("no answer from {shown_url} within {seconds} s"))
            .with_hint("check that the server runs and can be reached from here, or raise --connect-timeout")
    }

    /// Makes sure that the collections and indexes are there. One round trip: worth it where an empty answer or a
    /// write into nothing would deceive.
    ///
    /// # Errors
    /// With exit code 5 when something is missing.
    pub async fn require_schema(&self) -> CliResult {
        let store = self.store().await?;
        let findings = store.check_setup().await?;
        let missing: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.problem == SetupProblem::Missing)
            .map(|finding| finding.object.as_str())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message =
            format!("the outbox is not set up in {}: {} missing", store.location(), enumerate(&missing));
        Err(CliError::new(Exit::Misconfigured, message).with_hint(
            "run `relayctl setup` once; or check --database and --prefix, if it was set up elsewhere",
        ))
    }

    /// Makes sure that the profile allows changes; `what` is the command.
    ///
    /// # Errors
    /// With exit code 2 when the profile is read-only.
    pub fn require_writable(&self, what: &str) -> CliResult {
        match (&self.settings.profile, self.settings.read_only) {
            (Some(profile), true) => Err(CliError::usage(format!(
                "`{what}` changes the store, and profile `{profile}` is read-only"
            ))
            .with_hint("use another profile, or take read_only out of this one")),
            _ => Ok(()),
        }
    }

    /// Asks before destructive work: `question` with a yes or no, or the profile's name if the profile wants that.
    ///
    /// # Errors
    /// When the answer is no, or nobody can be asked and there was no `--yes`.
    pub fn confirm(&self, question: &str) -> CliResult {
        match (&self.settings.profile, self.settings.confirm) {
            (Some(profile), true) => {
                let question = format!("{question} Type the profile's name ({profile}) to go on");
                self.ui.confirm_by_typing(&question, profile)
            }
            _ => self.ui.confirm(question),
        }
    }

    /// Closes the store if it was opened: leaving without it can make the driver panic. A server that hangs does not
    /// keep a command from ending.
    pub async fn close(&self) {
        if let Some(store) = self.store.get() {
            let _ = tokio::time::timeout(CLOSE_PATIENCE, store.close()).await;
        }
    }
}

/// The first few of `names`, and how many more there are.
fn enumerate(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let is = if names.len() == 1 { "is" } else { "are" };
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more {is}", names[..SHOWN].join(", ")),
        _ => format!("{} {is}", names.join(", ")),
    }
}
