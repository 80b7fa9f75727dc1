//! From data to text: untrusted text made harmless, times, tables, and one writer for each output format.

pub mod delivery;
pub mod json;
pub mod listing;
pub mod shell;
pub mod table;
pub mod text;
pub mod time;

use std::io::Write;

use serde::Serialize;

use super::error::{CliError, CliResult};
use super::ui::Ui;
use crate::config::OutputFormat;

/// Writes one document in a machine's format: indented JSON for `json`, one line for the others.
///
/// # Errors
/// When standard output cannot be written.
pub fn print_document(ui: &Ui, document: &impl Serialize) -> CliResult {
    let mut output = ui.output();
    let written = match ui.format() {
        OutputFormat::Json => json::write_pretty(&mut output, document),
        _ => json::write_line(&mut output, document),
    };
    written.and_then(|()| output.flush()).map_err(CliError::output)
}
