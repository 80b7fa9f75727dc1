//! What is told of published events: to a program each one as its batch commits, to people a sentence at the end.

use serde::Serialize;

use crate::cli::context::Context;
use crate::cli::error::CliResult;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::cli::ui::Verbosity;
use crate::config::OutputFormat;
use crate::model::Appended;

/// One published event.
#[derive(Debug, Serialize)]
struct Published {
    id: String,
    created: bool,
    deliveries: Vec<String>,
}

impl From<&Appended> for Published {
    fn from(appended: &Appended) -> Self {
        let deliveries = appended.deliveries.iter().map(|delivery| delivery.id.to_string()).collect();
        Published { id: appended.id.to_string(), created: appended.created, deliveries }
    }
}

impl Record for Published {
    const COLUMNS: &'static [Column] =
        &[Column::words("EVENT"), Column::words("CREATED"), Column::words("DELIVERIES")];
    const FIELDS: &'static [&'static str] = &["id", "created", "deliveries"];

    fn id(&self) -> &str {
        &self.id
    }

    fn values(&self) -> Vec<String> {
        vec![self.id.clone(), self.created.to_string(), self.deliveries.join(" ")]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        self.values().into_iter().map(Cell::new).collect()
    }
}

/// The result of a publish on its way to standard output.
pub struct Telling<'a> {
    context: &'a Context,
    listing: Option<Listing<Published>>,
    is_open: bool,
}

impl<'a> Telling<'a> {
    /// Nothing has been told yet.
    pub fn new(context: &'a Context) -> Self {
        let is_machine = context.ui().format().is_machine();
        let listing = is_machine.then(|| Listing::new(context.ui(), context.times()));
        Telling { context, listing, is_open: false }
    }

    /// Tells a program what one batch did. That the reader went away stops the telling, and not the publishing.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn tell(&mut self, appended: &[Appended]) -> CliResult {
        let told = self.write(appended);
        self.unless_broken(told)
    }

    fn write(&mut self, appended: &[Appended]) -> CliResult {
        self.open()?;
        let Some(listing) = &mut self.listing else { return Ok(()) };
        appended.iter().try_for_each(|appended| listing.write(&appended.into()))?;
        listing.flush()
    }

    /// The one JSON document is an object whose member the listing is.
    fn open(&mut self) -> CliResult {
        if self.is_open || self.listing.is_none() {
            return Ok(());
        }
        self.is_open = true;
        self.frame("{\"events\": ")
    }

    fn frame(&self, text: &str) -> CliResult {
        match self.context.ui().format() {
            OutputFormat::Json => self.context.ui().print(text),
            _ => Ok(()),
        }
    }

    fn unless_broken(&mut self, told: CliResult) -> CliResult {
        match told {
            Err(error) if error.is_broken_pipe() => {
                self.listing = None;
                Ok(())
            }
            told => told,
        }
    }

    /// Ends what a program reads, or tells people the `sentence`.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn end(mut self, sentence: &str) -> CliResult {
        let ui = self.context.ui();
        let told = if ui.format().is_machine() {
            self.open().and_then(|()| self.close())
        } else if ui.verbosity() > Verbosity::Quiet {
            ui.print(&format!("{}\n", crate::cli::render::text::visible_lines(sentence)))
        } else {
            Ok(())
        };
        self.unless_broken(told)
    }

    fn close(&mut self) -> CliResult {
        let Some(listing) = self.listing.take() else { return Ok(()) };
        listing.finish()?;
        self.frame("}\n")
    }
}
