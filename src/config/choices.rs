//! Settings that are one of a few words.

use clap::ValueEnum;
use serde::Deserialize;

/// How data is written to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputFormat {
    /// For people: columns, or sentences.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    Jsonl,
    /// Comma-separated values with a header (RFC 4180).
    Csv,
    /// Identifiers, one a line.
    Ids,
}

impl OutputFormat {
    /// Whether a program reads it: nothing may be asked, and nothing but data is written to standard output.
    pub const fn is_machine(self) -> bool {
        !matches!(self, OutputFormat::Table)
    }
}

/// How times are shown in tables; in JSON and CSV they are always RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeStyle {
    /// From now: `3m ago`, `in 5s`.
    #[default]
    Relative,
    /// RFC 3339 in UTC.
    Utc,
    /// RFC 3339 in the time zone of this machine.
    Local,
}
