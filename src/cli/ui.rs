//! The terminal: standard output, standard error, colours by meaning, prompts and progress.
//!
//! Data goes to standard output, everything else to standard error. Nothing here panics when a stream is closed.

mod progress;
mod prompt;
mod status_line;
mod style;

use std::io::{self, IsTerminal, Write};

use crate::cli::error::{CliError, CliResult};
use crate::cli::render::table::Canvas;
use crate::cli::render::text::visible_lines;
use crate::config::{OutputFormat, redact};

pub use progress::Progress;
pub use status_line::StatusLine;
pub use style::{ColorWhen, Meaning};

/// How much is said on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Errors and warnings.
    Quiet,
    /// And what was done.
    #[default]
    Normal,
    /// And how.
    Verbose,
}

/// What is known of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    is_terminal: bool,
    has_color: bool,
    /// Whether a line that was written can be written over.
    can_move: bool,
}

impl Stream {
    fn look_at(stream: &impl anstream::stream::RawStream, color: ColorWhen) -> Stream {
        let is_terminal = stream.is_terminal();
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Stream { is_terminal, has_color: color.applies_to(stream), can_move: is_terminal && !is_dumb }
    }
}

/// What the user chose about the terminal.
#[derive(Clone, Copy, Debug, Default)]
pub struct UiOptions {
    /// When to use colours.
    pub color: ColorWhen,
    /// How much to say.
    pub verbosity: Verbosity,
    /// How data is written.
    pub format: OutputFormat,
    /// Whether every question is answered with yes beforehand.
    pub assume_yes: bool,
}

/// The terminal of this process.
#[derive(Debug)]
pub struct Ui {
    options: UiOptions,
    out: Stream,
    err: Stream,
    input_is_terminal: bool,
}

impl Ui {
    /// Looks at the streams of this process.
    pub fn new(options: UiOptions) -> Self {
        let out = Stream::look_at(&io::stdout(), options.color);
        let err = Stream::look_at(&io::stderr(), options.color);
        Ui { options, out, err, input_is_terminal: io::stdin().is_terminal() }
    }

    /// How data is to be written.
    pub fn format(&self) -> OutputFormat {
        self.options.format
    }

    /// How much is said on standard error.
    pub fn verbosity(&self) -> Verbosity {
        self.options.verbosity
    }

    /// Standard output, buffered. Whoever writes to it flushes it, and passes errors on through
    /// [`CliError::output`].
    pub fn output(&self) -> Output {
        Output { stream: io::BufWriter::with_capacity(OUTPUT_BUFFER, io::stdout()) }
    }

    /// Writes a text to standard output as it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn print(&self, text: &str) -> CliResult {
        let mut output = self.output();
        output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(CliError::output)
    }

    /// Whether standard output is a terminal.
    pub fn output_is_terminal(&self) -> bool {
        self.out.is_terminal
    }

    /// Whether standard error takes colours.
    pub fn error_has_color(&self) -> bool {
        self.err.has_color
    }

    /// The width of the terminal that standard output is; `None` when it is none, and nothing may be cut.
    pub fn output_width(&self) -> Option<usize> {
        if !self.out.is_terminal {
            return None;
        }
        let (terminal_size::Width(width), _) = terminal_size::terminal_size_of(io::stdout())?;
        Some(usize::from(width)).filter(|width| *width > 0)
    }

    /// What a table has to fit on standard output.
    pub fn canvas(&self) -> Canvas {
        Canvas { width: self.output_width(), has_color: self.out.has_color }
    }

    /// `text` in the colour of its meaning, for standard output.
    pub fn paint(&self, meaning: Meaning, text: &str) -> String {
        meaning.paint(text, self.out.has_color)
    }

    /// Says what was done, on standard error; not when quiet.
    pub fn note(&self, text: &str) {
        if self.options.verbosity >= Verbosity::Normal {
            self.say(&visible_lines(text));
        }
    }

    /// Says how it was done, on standard error; only when verbose.
    pub fn detail(&self, text: &str) {
        if self.options.verbosity >= Verbosity::Verbose {
            self.say(&Meaning::Muted.paint(&visible_lines(text), self.err.has_color));
        }
    }

    /// Warns on standard error, also when quiet.
    pub fn warn(&self, text: &str) {
        self.say_labelled(Meaning::Warning, "warning", text);
    }

    /// Reports an error: what happened, its causes, and what to do next.
    pub fn report(&self, error: &CliError) {
        let Some(message) = error.message() else { return };
        self.say_labelled(Meaning::Error, "error", &message);
        for cause in error.causes() {
            self.say_labelled(Meaning::Muted, "caused by", &cause);
        }
        for hint in error.hints() {
            self.say_labelled(Meaning::Hint, "hint", hint);
        }
    }

    fn say_labelled(&self, meaning: Meaning, label: &str, text: &str) {
        let label = meaning.paint(&format!("{label}:"), self.err.has_color);
        self.say(&format!("{label} {}", visible_lines(text)));
    }

    /// Passwords are masked once more on the last step. A closed standard error is nobody's concern.
    fn say(&self, line: &str) {
        let _ = writeln!(io::stderr(), "{}", redact(line));
    }
}

const OUTPUT_BUFFER: usize = 64 * 1024;

/// Standard output with a buffer of its own.
#[derive(Debug)]
pub struct Output {
    stream: io::BufWriter<io::Stdout>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
