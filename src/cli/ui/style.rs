//! Colours by meaning. What a thing means is decided where it is said, how that looks is decided here.

use anstream::stream::RawStream;
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

use crate::model::Status;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl ColorWhen {
    /// Whether `stream` gets colours.
    pub fn applies_to<S: RawStream>(self, stream: &S) -> bool {
        match self {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never,
        }
    }
}

/// What a text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// Nothing in particular.
    Plain,
    /// The head of a column or a section.
    Heading,
    /// Something went wrong.
    Error,
    /// Something deserves a look.
    Warning,
    /// What to do next.
    Hint,
    /// Less important than the rest.
    Muted,
    /// The status of a delivery.
    Status(Status),
}

impl Meaning {
    fn style(self) -> Style {
        let colored = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
        match self {
            Meaning::Plain | Meaning::Status(Status::Completed) => Style::new(),
            Meaning::Heading => Style::new().bold(),
            Meaning::Error => colored(AnsiColor::Red).bold(),
            Meaning::Warning => colored(AnsiColor::Yellow).bold(),
            Meaning::Hint => colored(AnsiColor::Cyan).bold(),
            Meaning::Muted => Style::new().dimmed(),
            Meaning::Status(Status::Pending) => colored(AnsiColor::Yellow),
            Meaning::Status(Status::Processing) => colored(AnsiColor::Cyan),
            Meaning::Status(Status::Dead) => colored(AnsiColor::Red),
        }
    }

    /// `text` in the colour of its meaning, if there are colours.
    pub fn paint(self, text: &str, has_color: bool) -> String {
        let style = self.style();
        let is_seen = has_color && style != Style::new() && !text.is_empty();
        if is_seen { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_a_text_stays_as_it_is() {
        assert_eq!(Meaning::Error.paint("x", false), "x");
        assert_eq!(Meaning::Error.paint("x", true), "\u{1b}[1m\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Meaning::Plain.paint("x", true), "x");
        assert_eq!(Meaning::Error.paint("", true), "");
    }
}
