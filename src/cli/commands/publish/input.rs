//! Where the text of events comes from: an argument, a file, or standard input.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::fs::File;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

use crate::cli::error::{CliError, CliResult};
use crate::ops::MAX_LINE_BYTES;

/// A source of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// It was given itself.
    Text(String),
    /// A file has it.
    File(PathBuf),
    /// Standard input has it.
    Standard,
}

impl Input {
    /// What an option of the form JSON, @FILE or - means.
    pub fn of_value(argument: &str) -> Input {
        match argument.strip_prefix('@') {
            Some(path) => Input::of_path(Path::new(path)),
            None if argument == "-" => Input::Standard,
            None => Input::Text(argument.to_owned()),
        }
    }

    /// What a path means, where - is standard input.
    pub fn of_path(path: &Path) -> Input {
        if path == Path::new("-") { Input::Standard } else { Input::File(path.to_owned()) }
    }

    /// The whole text, at most as long as the longest line of a stream. `what` is what it is read for.
    ///
    /// # Errors
    /// When it cannot be read, is too long, or is not UTF-8.
    pub async fn read_text(&self, what: &str) -> CliResult<String> {
        if let Input::Text(text) = self {
            return Ok(text.clone());
        }
        let mut bytes = Vec::new();
        let mut bounded = self.open().await?.take(MAX_LINE_BYTES + 1);
        bounded.read_to_end(&mut bytes).await.with_context(|| self.unreadable())?;
        if bytes.len() as u64 > MAX_LINE_BYTES {
            let limit = MAX_LINE_BYTES >> 20;
            return Err(CliError::failed(format!("{what}: {} has more than {limit} MiB", self.name())));
        }
        let not_text = |_| CliError::failed(format!("{what}: {} is not valid UTF-8", self.name()));
        String::from_utf8(bytes).map_err(not_text)
    }

    /// The text as it comes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(&self) -> CliResult<Box<dyn AsyncBufRead + Send + Unpin>> {
        let source: Box<dyn AsyncRead + Send + Unpin> = match self {
            Input::Text(text) => Box::new(std::io::Cursor::new(text.clone().into_bytes())),
            Input::File(path) => Box::new(File::open(path).await.with_context(|| self.unreadable())?),
            Input::Standard => Box::new(tokio::io::stdin()),
        };
        Ok(Box::new(BufReader::with_capacity(1 << 16, source)))
    }

    /// How many lines a regular file has, for a bar that knows where it ends; `None` where only reading to the end tells.
    pub async fn count_lines(&self) -> Option<u64> {
        let Input::File(path) = self else { return None };
        if !tokio::fs::metadata(path).await.ok()?.is_file() {
            return None;
        }
        let mut reader = BufReader::with_capacity(1 << 16, File::open(path).await.ok()?);
        let mut lines = 0;
        let mut is_within_a_line = false;
        loop {
            let bytes = reader.fill_buf().await.ok()?;
            let Some(&last) = bytes.last() else { return Some(lines + u64::from(is_within_a_line)) };
            lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
            is_within_a_line = last != b'\n';
            let read = bytes.len();
            reader.consume(read);
        }
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match self {
            Input::Text(_) => "the argument".to_owned(),
            Input::File(path) => path.display().to_string(),
            Input::Standard => "standard input".to_owned(),
        }
    }

    fn unreadable(&self) -> String {
        format!("cannot read {}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_at_sign_means_a_file_and_a_dash_standard_input() {
        assert_eq!(Input::of_value("{}"), Input::Text("{}".to_owned()));
        assert_eq!(Input::of_value("@a.json"), Input::File("a.json".into()));
        assert_eq!(Input::of_value("-"), Input::Standard);
        assert_eq!(Input::of_value("@-"), Input::Standard);
        assert_eq!(Input::of_value("-1"), Input::Text("-1".to_owned()));
    }
}
