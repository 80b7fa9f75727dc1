//! Which value wins: this is the one place that says.
//!
//! 1. A flag.
//! 2. The profile that `--profile` names. It was asked for by name in this very command, so that a forgotten
//!    `RELAYCTL_STORE` in the shell must not send the command to another store.
//! 3. The environment.
//! 4. The profile that `RELAYCTL_PROFILE`, the file's `default_profile`, or the name `default` selects.
//! 5. The default.
//!
//! Every value remembers where it came from.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{
    ConfigError, ConfigFile, OutputFormat, Profile, Secret, TimeStyle, check_database, check_prefix,
};

/// The prefix that is used unless another is configured.
pub const DEFAULT_PREFIX: &str = "relaybus_";

/// The profile that is used unless another is configured.
const DEFAULT_PROFILE: &str = "default";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command.
    Flag(&'static str),
    /// A variable of the environment.
    Environment(&'static str),
    /// A key of a profile.
    Profile {
        /// The profile.
        name: String,
        /// The key.
        key: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Nobody gave one.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Environment(variable) => f.write_str(variable),
            Origin::Profile { name, key, path } => {
                write!(f, "{key} of profile `{name}` in {}", path.display())
            }
            Origin::Default => f.write_str("the default"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

/// How to come by the store's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSource {
    /// It is known.
    Url(Secret),
    /// It is the first line of a file.
    File(PathBuf),
    /// A shell command prints it.
    Command(String),
}

/// What the flags of the command say.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--store`.
    pub store: Option<Secret>,
    /// `--database`.
    pub database: Option<String>,
    /// `--prefix`.
    pub prefix: Option<String>,
    /// `--profile`.
    pub profile: Option<String>,
    /// `--output`.
    pub output: Option<OutputFormat>,
    /// `--time`.
    pub time: Option<TimeStyle>,
}

/// The environment, as far as settings are concerned.
pub trait Environment {
    /// The value of a variable; an empty one counts as absent.
    fn get(&self, name: &str) -> Option<OsString>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name).filter(|value| !value.is_empty())
    }
}

/// Settings after all sources were asked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to come by the store's URL; `None` when nothing says so.
    pub store: Option<Sourced<StoreSource>>,
    /// The database; the URL's own when absent.
    pub database: Option<Sourced<String>>,
    /// What names of collections begin with.
    pub prefix: Sourced<String>,
    /// How data is written.
    pub output: Sourced<OutputFormat>,
    /// How times are shown in tables.
    pub time: Sourced<TimeStyle>,
    /// The name of the profile in use, if any.
    pub profile: Option<String>,
    /// Whether every command that changes something is refused.
    pub read_only: bool,
    /// Whether the profile's name is to be typed before destructive work.
    pub confirm: bool,
    /// The configuration file, whether it exists or not.
    pub path: Option<PathBuf>,
}

/// Asks all sources.
///
/// # Errors
/// When the file cannot be used, a profile does not exist, or a value makes no sense; never for a missing store,
/// which only matters to a command that needs one: see [`Settings::store_url`].
pub fn resolve(
    flags: Flags,
    environment: &dyn Environment,
    path: Option<PathBuf>,
) -> Result<Settings, ConfigError> {
    let file = path.as_deref().map(ConfigFile::load).transpose()?.unwrap_or_default();
    let selected = select_profile(&flags, environment, &file, path.as_deref())?;
    let sources = Sources { environment, selected };
    let prefix = sources
        .text(flags.prefix, "--prefix", "RELAYCTL_PREFIX", "prefix", |p| p.prefix.clone())?
        .unwrap_or(Sourced { value: DEFAULT_PREFIX.to_owned(), origin: Origin::Default });
    let database = sources
        .text(flags.database, "--database", "RELAYCTL_DATABASE", "database", |p| p.database.clone())?;
    check_value(&prefix, check_prefix)?;
    database.as_ref().map_or(Ok(()), |database| check_value(database, check_database))?;
    let profile = sources.selected.as_ref();
    Ok(Settings {
        store: sources.store(flags.store)?,
        database,
        prefix,
        output: sources.choice(flags.output, "--output", "output", |p| p.output),
        time: sources.choice(flags.time, "--time", "time", |p| p.time),
        read_only: profile.is_some_and(|selected| selected.profile.read_only),
        confirm: profile.is_some_and(|selected| selected.profile.confirm),
        profile: profile.map(|selected| selected.name.clone()),
        path,
    })
}

fn check_value(
    value: &Sourced<String>,
    check: fn(&str) -> Result<String, super::InvalidName>,
) -> Result<(), ConfigError> {
    match check(&value.value) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(ConfigError::InvalidValue { origin: value.origin.clone(), reason: error.to_string() })
        }
    }
}

/// A profile that is in use.
struct Selected {
    name: String,
    profile: Profile,
    path: PathBuf,
    /// Whether this very command named it.
    by_flag: bool,
}

fn select_profile(
    flags: &Flags,
    environment: &dyn Environment,
    file: &ConfigFile,
    path: Option<&Path>,
) -> Result<Option<Selected>, ConfigError> {
    let by_environment = read_variable(environment, "RELAYCTL_PROFILE")?;
    let by_flag = flags.profile.is_some();
    let named = flags.profile.clone().or(by_environment).or_else(|| file.default_profile.clone());
    let is_named = named.is_some();
    let name = named.unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
    let path = path.map_or_else(|| PathBuf::from("config.toml"), Path::to_owned);
    match file.profiles.get(&name) {
        Some(profile) => {
            let keys = profile.store_keys();
            if keys.len() > 1 {
                return Err(ConfigError::AmbiguousStore { profile: name, path, keys });
            }
            Ok(Some(Selected { name, profile: profile.clone(), path, by_flag }))
        }
        None if is_named => {
            let known = file.profiles.keys().cloned().collect();
            Err(ConfigError::NoSuchProfile { name, path, known })
        }
        None => Ok(None),
    }
}

fn read_variable(
    environment: &dyn Environment,
    variable: &'static str,
) -> Result<Option<String>, ConfigError> {
    let not_text = |_| ConfigError::InvalidValue {
        origin: Origin::Environment(variable),
        reason: "the value is not valid UTF-8".to_owned(),
    };
    environment.get(variable).map(|value| value.into_string().map_err(not_text)).transpose()
}

/// What can be asked for a value, after the flags.
struct Sources<'a> {
    environment: &'a dyn Environment,
    selected: Option<Selected>,
}

impl Sources<'_> {
    fn text(
        &self,
        flag: Option<String>,
        flag_name: &'static str,
        variable: &'static str,
        key: &'static str,
        from_profile: fn(&Profile) -> Option<String>,
    ) -> Result<Option<Sourced<String>>, ConfigError> {
        if let Some(value) = flag {
            return Ok(Some(Sourced { value, origin: Origin::Flag(flag_name) }));
        }
        let from_profile = self.profiled(key, from_profile);
        let from_environment = read_variable(self.environment, variable)?
            .map(|value| Sourced { value, origin: Origin::Environment(variable) });
        Ok(self.first(from_profile, from_environment))
    }

    fn choice<T: Copy + Default>(
        &self,
        flag: Option<T>,
        flag_name: &'static str,
        key: &'static str,
        from_profile: fn(&Profile) -> Option<T>,
    ) -> Sourced<T> {
        let from_flag = flag.map(|value| Sourced { value, origin: Origin::Flag(flag_name) });
        from_flag
            .or_else(|| self.profiled(key, from_profile))
            .unwrap_or(Sourced { value: T::default(), origin: Origin::Default })
    }

    fn store(&self, flag: Option<Secret>) -> Result<Option<Sourced<StoreSource>>, ConfigError> {
        if let Some(url) = flag {
            let origin = Origin::Flag("--store");
            return Ok(Some(Sourced { value: StoreSource::Url(url), origin }));
        }
        let from_environment = read_variable(self.environment, "RELAYCTL_STORE")?.map(|url| Sourced {
            value: StoreSource::Url(Secret::new(url)),
            origin: Origin::Environment("RELAYCTL_STORE"),
        });
        Ok(self.first(self.store_of_profile(), from_environment))
    }

    fn store_of_profile(&self) -> Option<Sourced<StoreSource>> {
        let url = self.profiled("store", |p| p.store.clone().map(|url| StoreSource::Url(url.0)));
        let file = self.profiled("store_file", |p| p.store_file.clone().map(StoreSource::File));
        let command = self.profiled("store_command", |p| p.store_command.clone().map(StoreSource::Command));
        url.or(file).or(command)
    }

    fn profiled<T>(&self, key: &'static str, read: impl Fn(&Profile) -> Option<T>) -> Option<Sourced<T>> {
        let selected = self.selected.as_ref()?;
        let value = read(&selected.profile)?;
        let origin = Origin::Profile { name: selected.name.clone(), key, path: selected.path.clone() };
        Some(Sourced { value, origin })
    }

    /// The order between profile and environment.
    fn first<T>(&self, profile: Option<T>, environment: Option<T>) -> Option<T> {
        match &self.selected {
            Some(selected) if selected.by_flag => profile.or(environment),
            _ => environment.or(profile),
        }
    }
}

impl Settings {
    /// The store's URL: read from its file or asked of its command if need be.
    ///
    /// # Errors
    /// When no store is configured, or its file or command gives none.
    pub fn store_url(&self) -> Result<Secret, ConfigError> {
        let Some(Sourced { value, origin }) = &self.store else {
            return Err(ConfigError::NoStore { path: self.path.clone() });
        };
        let no_url = |reason: String| ConfigError::NoUrl { origin: origin.clone(), reason };
        let text = match value {
            StoreSource::Url(url) => return Ok(url.clone()),
            StoreSource::File(file) => read_url_file(&self.beside_config(file)),
            StoreSource::Command(command) => ask_command(command),
        };
        first_line(&text.map_err(no_url)?).ok_or_else(|| no_url("it gave an empty first line".to_owned()))
    }

    fn beside_config(&self, file: &Path) -> PathBuf {
        let directory = self.path.as_deref().and_then(Path::parent);
        directory.map_or_else(|| file.to_owned(), |directory| directory.join(file))
    }
}

fn read_url_file(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// The command keeps standard error, to say what is wrong. It gets no standard input: that may hold events to publish.
/// Whoever asks for a passphrase does so at the terminal itself.
fn ask_command(command: &str) -> Result<String, String> {
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run sh: {error}"))?;
    if !output.status.success() {
        return Err(format!("the command failed ({})", output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| "the command printed text that is not valid UTF-8".to_owned())
}

fn first_line(text: &str) -> Option<Secret> {
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| Secret::new(line))
}
