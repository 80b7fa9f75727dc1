//! Where settings come from, which of them wins, and how secrets stay out of what people see.
//!
//! The order is written down once, in [`settings`].

mod choices;
mod file;
pub mod handlers;
mod names;
mod secret;
pub mod settings;

pub use choices::{OutputFormat, TimeStyle};
pub use file::{ConfigFile, Profile, config_path};
pub use names::{InvalidName, check_database, check_prefix};
pub use secret::{Secret, redact};
pub use settings::{Environment, Flags, Origin, ProcessEnvironment, Settings, Sourced, StoreSource, resolve};

use std::path::PathBuf;

/// A configuration that cannot be used: where, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is there but cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not the TOML that was expected.
    #[error("{} is not a valid configuration: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with secrets masked.
        reason: String,
    },
    /// The file has keys that mean nothing, such as a misspelt one.
    #[error("{} has {} unknown: {}", .path.display(), if .keys.len() == 1 { "a key that is" } else { "keys that are" }, .keys.join(", "))]
    UnknownKeys {
        /// The file.
        path: PathBuf,
        /// The keys, as paths.
        keys: Vec<String>,
    },
    /// A profile was named that the file does not have.
    #[error("there is no profile `{name}` in {}", .path.display())]
    NoSuchProfile {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// Those that it has.
        known: Vec<String>,
    },
    /// A value from somewhere cannot be used.
    #[error("{origin}: {reason}")]
    InvalidValue {
        /// Where it came from.
        origin: Origin,
        /// What is wrong with it.
        reason: String,
    },
    /// A profile gives the store in more than one way.
    #[error("profile `{profile}` in {} gives the store more than once: {}", .path.display(), .keys.join(", "))]
    AmbiguousStore {
        /// The profile.
        profile: String,
        /// The file.
        path: PathBuf,
        /// The keys that exclude each other.
        keys: Vec<&'static str>,
    },
    /// Nothing says where the store is.
    #[error("no store is configured")]
    NoStore {
        /// The configuration file that could hold a profile.
        path: Option<PathBuf>,
    },
    /// The file or command that a profile takes the URL from gave none.
    #[error("{origin}: {reason}")]
    NoUrl {
        /// The profile.
        origin: Origin,
        /// What went wrong with which file or command.
        reason: String,
    },
}

impl ConfigError {
    /// What to do next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ConfigError::NoStore { path } => three_ways(path.as_deref()),
            ConfigError::NoSuchProfile { known, .. } if known.is_empty() => {
                vec!["the file has no [profiles.NAME] at all".to_owned()]
            }
            ConfigError::NoSuchProfile { known, .. } => {
                vec![format!("it has these: {}", known.join(", "))]
            }
            ConfigError::UnknownKeys { .. } => vec![format!("a profile knows: {}", Profile::KEYS.join(", "))],
            ConfigError::AmbiguousStore { .. } => vec!["keep one of them".to_owned()],
            _ => Vec::new(),
        }
    }
}

fn three_ways(path: Option<&std::path::Path>) -> Vec<String> {
    let file = path.map_or_else(|| "config.toml".to_owned(), |path| path.display().to_string());
    vec![format!(
        "give one in any of these ways:\n  \
         relayctl --store mongodb://HOST:PORT/DATABASE?replicaSet=NAME COMMAND\n  \
         export RELAYCTL_STORE=mongodb://HOST:PORT/DATABASE?replicaSet=NAME\n  \
         a profile in {file}:\n    \
         [profiles.default]\n    \
         store = \"mongodb://HOST:PORT/DATABASE?replicaSet=NAME\""
    )]
}
