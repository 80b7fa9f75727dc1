//! Questions. They are asked only where somebody can read and answer them.

use dialoguer::{Confirm, Input};

use super::Ui;
use crate::cli::error::{CliError, CliResult};

impl Ui {
    /// Asks a question whose answer is no unless the user says yes; `--yes` answers it beforehand.
    ///
    /// # Errors
    /// When the answer is no (exit code 1), when nobody can be asked (2), or on Ctrl-C (130).
    pub fn confirm(&self, question: &str) -> CliResult {
        if self.options.assume_yes {
            return Ok(());
        }
        self.require_somebody(question)?;
        let prompt = Confirm::new().with_prompt(question).default(false).wait_for_newline(true);
        match answered(prompt.interact())? {
            true => Ok(()),
            false => Err(CliError::failed("declined, and nothing was changed")),
        }
    }

    /// Asks for `word` to be typed. `--yes` does not answer this one when somebody can be asked.
    ///
    /// # Errors
    /// When something else is typed (exit code 1), when nobody can be asked and there was no `--yes` (2), or on
    /// Ctrl-C (130).
    pub fn confirm_by_typing(&self, question: &str, word: &str) -> CliResult {
        if !self.can_ask() && self.options.assume_yes {
            return Ok(());
        }
        self.require_somebody(question)?;
        let prompt = Input::<String>::new().with_prompt(question).allow_empty(true);
        match answered(prompt.interact_text())?.trim() == word {
            true => Ok(()),
            false => Err(CliError::failed(format!("that was not `{word}`, and nothing was changed"))),
        }
    }

    /// Whether there is somebody who can read and answer a question.
    pub fn can_ask(&self) -> bool {
        self.input_is_terminal && self.err.is_terminal && !self.options.format.is_machine()
    }

    fn require_somebody(&self, question: &str) -> CliResult {
        if self.can_ask() {
            return Ok(());
        }
        let reason = if self.options.format.is_machine() {
            "the output is meant for a program"
        } else {
            "there is no terminal"
        };
        Err(CliError::usage(format!("this needs a yes, and {reason}, so nobody can be asked: {question}"))
            .with_hint("add --yes to answer it beforehand"))
    }
}

fn answered<T>(answer: dialoguer::Result<T>) -> CliResult<T> {
    answer.map_err(|dialoguer::Error::IO(error)| {
        // A prompt that ends early leaves the cursor hidden.
        let _ = dialoguer::console::Term::stderr().show_cursor();
        match error.kind() {
            std::io::ErrorKind::Interrupted => CliError::interrupted(),
            _ => anyhow::Error::new(error).context("the question could not be asked").into(),
        }
    })
}
