//! What the exit codes of a command mean.

use std::collections::BTreeMap;

/// What an exit code says about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The work is done.
    Done,
    /// No attempt can succeed.
    Bury,
    /// Tried again later; the last line of stdout may say when.
    Retry,
}

/// The meaning of each exit code. Codes that are not in it are tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitCodes(BTreeMap<i32, Meaning>);

impl Default for ExitCodes {
    /// 0 is done; 65 (data error) and 78 (configuration error) bury; 75 (temporary failure) retries.
    fn default() -> Self {
        let bury = Meaning::Bury;
        ExitCodes(BTreeMap::from([(0, Meaning::Done), (65, bury), (75, Meaning::Retry), (78, bury)]))
    }
}

impl ExitCodes {
    /// The same, but that `code` means something else.
    pub fn with(mut self, code: u8, meaning: Meaning) -> Self {
        self.0.insert(i32::from(code), meaning);
        self
    }

    pub(in crate::handler) fn meaning_of(&self, code: i32) -> Option<Meaning> {
        self.0.get(&code).copied()
    }
}
