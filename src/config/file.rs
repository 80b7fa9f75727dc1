//! The configuration file: profiles by name, and nothing that is not understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use serde::Deserialize;

use super::{ConfigError, OutputFormat, TimeStyle, redact};

/// `$XDG_CONFIG_HOME/relayctl/config.toml`, by default below `~/.config`; `None` without a home directory.
pub fn config_path() -> Option<PathBuf> {
    let base = etcetera::base_strategy::Xdg::new().ok()?;
    Some(base.config_dir().join("relayctl").join("config.toml"))
}

/// What a configuration file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ConfigFile {
    /// The profile that is used when none is named; `default` when absent.
    pub default_profile: Option<String>,
    /// Profiles by name.
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

/// Settings that belong together, usually those of one environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Profile {
    /// The store's URL.
    pub store: Option<StoreUrl>,
    /// A file whose first line is the store's URL; relative to the configuration file.
    pub store_file: Option<PathBuf>,
    /// A shell command that prints the store's URL.
    pub store_command: Option<String>,
    /// The database.
    pub database: Option<String>,
    /// What names of collections begin with.
    pub prefix: Option<String>,
    /// How data is written.
    pub output: Option<OutputFormat>,
    /// How times are shown.
    pub time: Option<TimeStyle>,
    /// Refuses every command that changes something.
    #[serde(default)]
    pub read_only: bool,
    /// Asks for the profile's name to be typed before destructive work.
    #[serde(default)]
    pub confirm: bool,
}

/// A URL in the file; masked wherever it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct StoreUrl(pub super::Secret);

impl From<String> for StoreUrl {
    fn from(url: String) -> Self {
        StoreUrl(super::Secret::new(url))
    }
}

impl Profile {
    /// The keys that a profile may have.
    pub const KEYS: [&str; 9] = [
        "store",
        "store_file",
        "store_command",
        "database",
        "prefix",
        "output",
        "time",
        "read_only",
        "confirm",
    ];

    /// Those of the three keys for the store that are given.
    pub(super) fn store_keys(&self) -> Vec<&'static str> {
        let given = [
            ("store", self.store.is_some()),
            ("store_file", self.store_file.is_some()),
            ("store_command", self.store_command.is_some()),
        ];
        given.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect()
    }
}

impl ConfigFile {
    /// Reads the file; one that is not there is an empty one.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has a key that is not known.
    pub fn load(path: &Path) -> Result<ConfigFile, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => ConfigFile::parse(&text, path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ConfigFile::default()),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// Reads the text of the file at `path`.
    ///
    /// # Errors
    /// When it is not TOML, or has a key that is not known.
    pub fn parse(text: &str, path: &Path) -> Result<ConfigFile, ConfigError> {
        let malformed = |error: toml::de::Error| ConfigError::Malformed {
            path: path.to_owned(),
            reason: redact(error.to_string().trim_end()),
        };
        let mut unknown = Vec::new();
        let deserializer = toml::Deserializer::parse(text).map_err(malformed)?;
        let config = serde_ignored::deserialize(deserializer, |key| unknown.push(key.to_string()))
            .map_err(malformed)?;
        if unknown.is_empty() {
            return Ok(config);
        }
        Err(ConfigError::UnknownKeys { path: path.to_owned(), keys: unknown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        ConfigFile::parse(text, Path::new("config.toml"))
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            default_profile = "live"
            [profiles.live]
            store = "mongodb://u:hunter2@h/db"
            database = "shop"
            prefix = "p_"
            output = "jsonl"
            time = "utc"
            read_only = true
            confirm = true
        "#;
        let config = parse(text).unwrap();
        let live = &config.profiles["live"];
        assert_eq!(config.default_profile.as_deref(), Some("live"));
        assert_eq!((live.output, live.time), (Some(OutputFormat::Jsonl), Some(TimeStyle::Utc)));
        assert!(live.read_only && live.confirm);
        assert_eq!(live.store.as_ref().unwrap().0.expose(), "mongodb://u:hunter2@h/db");
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_file_and_key() {
        let error = parse("[profiles.live]\nreadonly = true\n").unwrap_err().to_string();
        assert_eq!(error, "config.toml has a key that is unknown: profiles.live.readonly");
    }

    #[test]
    fn a_slip_in_the_file_shows_no_password() {
        for text in [
            "[profiles.live]\nstore = \"mongodb://u:hunter2@h/db\n",
            "[profiles.live]\nstore = [\"mongodb://u:hunter2@h/db\"]\n",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2") && error.contains("config.toml"), "{error}");
        }
    }

    #[test]
    fn an_unknown_word_for_the_output_is_refused() {
        let error = parse("[profiles.p]\noutput = \"xml\"\n").unwrap_err().to_string();
        assert!(error.contains("xml") && error.contains("jsonl"), "{error}");
    }
}
