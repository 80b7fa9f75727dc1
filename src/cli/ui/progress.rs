//! Progress of long work: a bar on a terminal, a line now and then in a log, nothing when quiet.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::{Ui, Verbosity};

/// How often a log gets a line.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How often a bar moves on its own.
const BAR_TICK: Duration = Duration::from_millis(100);

/// The progress of one piece of work. Dropping it takes the bar away.
#[derive(Debug)]
pub struct Progress<'ui> {
    ui: &'ui Ui,
    what: String,
    total: Option<u64>,
    done: u64,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Bar(ProgressBar),
    Log { last: Instant },
    Silent,
}

impl Ui {
    /// Shows the progress of `what`, such as "requeued", over `total` things, when that is known.
    pub fn progress(&self, what: &str, total: Option<u64>) -> Progress<'_> {
        let display = if self.options.verbosity == Verbosity::Quiet {
            Display::Silent
        } else if self.err.can_move {
            Display::Bar(bar(what, total))
        } else {
            Display::Log { last: Instant::now() }
        };
        Progress { ui: self, what: what.to_owned(), total, done: 0, display }
    }
}

fn bar(what: &str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{msg} {human_pos} of {human_len} {wide_bar} {rate} {eta}",
        None => "{msg} {human_pos} {spinner} {rate}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        // The library's own rate has four decimals.
        bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(text, "{:.0}/s", state.per_sec());
        }));
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(BAR_TICK);
    bar
}

impl Progress<'_> {
    /// That many more are done.
    pub fn add(&mut self, more: u64) {
        self.done += more;
        match &mut self.display {
            Display::Bar(bar) => bar.set_position(self.done),
            Display::Log { last } if last.elapsed() >= LOG_EVERY => {
                *last = Instant::now();
                self.ui.note(&self.line());
            }
            Display::Log { .. } | Display::Silent => {}
        }
    }

    /// How many are done.
    pub fn done(&self) -> u64 {
        self.done
    }

    fn line(&self) -> String {
        match self.total {
            Some(total) => format!("{} {} of {total}", self.what, self.done),
            None => format!("{} {}", self.what, self.done),
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}
