//! The limits of the short texts: ids, types, keys and handler names.

use super::event::MAX_NAME_BYTES;

/// Input that the model refuses, with the place and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct InvalidInput {
    /// What was wrong: a field name, or a JSON path such as `payload.items[3].price`.
    pub what: String,
    /// Why it is refused.
    pub reason: String,
}

impl InvalidInput {
    pub(crate) fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        InvalidInput { what: what.into(), reason: reason.into() }
    }

    /// The same as the writer of a line sees it: `payload.total` instead of `event.payload.total`. The only line of the
    /// text goes without saying.
    pub(crate) fn below(self, root: &str) -> Self {
        let what = self.what.strip_prefix(root).and_then(|path| path.strip_prefix('.')).unwrap_or(&self.what);
        InvalidInput::new(what, self.reason.replace(" at line 1 column ", " at column "))
    }
}

/// Ids, types, keys and handlers are 1 to [`MAX_NAME_BYTES`] bytes and hold no NUL.
pub(crate) fn check_name(what: &str, text: &str) -> Result<(), InvalidInput> {
    if text.is_empty() {
        return Err(InvalidInput::new(what, "must not be empty"));
    }
    if text.len() > MAX_NAME_BYTES {
        let reason = format!("is {} bytes long, and at most {MAX_NAME_BYTES} are allowed", text.len());
        return Err(InvalidInput::new(what, reason));
    }
    if text.contains('\0') {
        return Err(InvalidInput::new(what, "must not contain a NUL character"));
    }
    Ok(())
}
