//! One line at the bottom of the terminal that is written over, with everything else scrolling by above it.

use std::io::{self, Write};
use std::panic;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Ui, Verbosity};
use crate::cli::render::text::fit;

/// Takes back what stands on the current line.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// The width of a terminal that does not tell its own.
const USUAL_COLUMNS: usize = 80;

/// The status line of this process, on standard error. Dropping it takes it away.
#[derive(Debug)]
pub struct StatusLine {
    bar: ProgressBar,
}

impl Ui {
    /// A status line, where standard error is a terminal that can write over a line, and neither less nor more than usual is
    /// to be said.
    pub fn status_line(&self) -> Option<StatusLine> {
        let is_wanted = self.options.verbosity == Verbosity::Normal && self.err.can_move;
        is_wanted.then(StatusLine::new)
    }
}

impl StatusLine {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        clear_before_panics();
        StatusLine { bar }
    }

    /// How many columns there are now: the terminal may have been resized. The last one stays free, so that no terminal
    /// begins a new line.
    pub fn columns(&self) -> usize {
        let size = terminal_size::terminal_size_of(io::stderr());
        let columns = size.map(|(terminal_size::Width(columns), _)| usize::from(columns));
        columns.filter(|columns| *columns > 0).unwrap_or(USUAL_COLUMNS).saturating_sub(1)
    }

    /// Shows this text from now on.
    pub fn show(&self, text: &str) {
        self.bar.set_message(fit(text, self.columns()));
    }

    /// Writes a line above it.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| {
            let _ = io::stderr().write_all(line.as_bytes());
        });
    }
}

impl StatusLine {
    /// Takes the line away for good. What is said from now on is written as it is.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.end();
    }
}

/// The message of a panic begins on a line of its own. It does not wait for the status line, which may be what panics.
fn clear_before_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let _ = io::stderr().write_all(CLEAR_LINE);
        report(info);
    }));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::num::NonZeroU16;
    use std::process::{Command, Stdio};

    use nix::pty::{Winsize, openpty};

    use super::*;

    /// Says that a test runs as a process of its own, on a terminal.
    const ON_TERMINAL: &str = "RELAYCTL_TEST_ON_TERMINAL";

    /// What is on a terminal of 80 columns when this test of this binary has run there.
    fn screen_of(test: &str) -> String {
        let size = Winsize { ws_row: 60, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let stream = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", test]).env(ON_TERMINAL, "1").env("TERM", "xterm");
        let child =
            command.env_remove("RUST_BACKTRACE").stdin(stream()).stdout(stream()).stderr(stream()).spawn();
        drop((command, pty.slave));
        let mut shown = Vec::new();
        // The end of a terminal shows as an error, after everything was read.
        let _ = File::from(pty.master).read_to_end(&mut shown);
        child.unwrap().wait().unwrap();
        let [rows, columns] = [60, 80].map(|size| NonZeroU16::new(size).unwrap());
        let mut terminal = vt100::Parser::new(rows, columns, 0);
        terminal.process(&shown);
        terminal.screen().contents()
    }

    #[test]
    fn a_panic_begins_on_a_clean_line() {
        if std::env::var_os(ON_TERMINAL).is_some() {
            let status_line = StatusLine::new();
            status_line.show("3 in flight");
            panic!("the roof is on fire");
        }
        let screen = screen_of("cli::ui::status_line::tests::a_panic_begins_on_a_clean_line");
        assert!(screen.contains("the roof is on fire") && !screen.contains("in flight"), "{screen}");
        assert!(
            screen.lines().any(|line| line.starts_with("thread ") && line.contains(" panicked at ")),
            "{screen}"
        );
    }
}
