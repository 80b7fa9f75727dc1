//! Listings in each output format, written row by row so that memory does not grow with their length.

use std::io::{self, Write};

use serde::Serialize;

use super::json;
use super::table::{Canvas, Cell, Column, Layout};
use super::text::visible;
use super::time::Times;
use crate::cli::error::{CliError, CliResult};
use crate::cli::ui::Ui;
use crate::config::OutputFormat;

/// Rows that are looked at to find the widths of a table's columns.
const MEASURED_ROWS: usize = 50;

/// Something that can be listed.
pub trait Record: Serialize {
    /// The columns of a table.
    const COLUMNS: &'static [Column];
    /// The names of the fields in CSV: those of the JSON.
    const FIELDS: &'static [&'static str];

    /// What names it, for `-o ids`.
    fn id(&self) -> &str;

    /// The values of [`Record::FIELDS`].
    fn values(&self) -> Vec<String>;

    /// The values of [`Record::COLUMNS`].
    fn cells(&self, times: &Times) -> Vec<Cell>;
}

/// A listing on standard output.
pub struct Listing<R> {
    form: Box<dyn Form<R>>,
}

/// Where and how a listing is written.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The format.
    pub format: OutputFormat,
    /// The terminal, if it is one.
    pub canvas: Canvas,
    /// Whether a terminal shows it, which must not get control characters in any format.
    pub is_terminal: bool,
    /// How times are shown.
    pub times: Times,
}

impl Target {
    /// Standard output, as the user wants it.
    pub fn new(ui: &Ui, times: Times) -> Target {
        Target { format: ui.format(), canvas: ui.canvas(), is_terminal: ui.output_is_terminal(), times }
    }
}

impl<R: Record> Listing<R> {
    /// A listing on standard output.
    pub fn new(ui: &Ui, times: Times) -> Listing<R> {
        Listing::to(ui.output(), Target::new(ui, times))
    }

    fn to(output: impl Write + 'static, target: Target) -> Listing<R> {
        let form: Box<dyn Form<R>> = match target.format {
            OutputFormat::Table => Box::new(TableForm { output, target, layout: None, measured: Vec::new() }),
            OutputFormat::Json => Box::new(JsonForm { output, is_open: false }),
            OutputFormat::Jsonl => Box::new(JsonLinesForm { output }),
            OutputFormat::Csv => {
                let output = csv::WriterBuilder::new().from_writer(output);
                Box::new(CsvForm { output, has_head: false, is_terminal: target.is_terminal })
            }
            OutputFormat::Ids => Box::new(IdsForm { output }),
        };
        Listing { form }
    }

    /// Writes one row, at the latest with the next flush; a table may hold its first rows back to measure them.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn write(&mut self, row: &R) -> CliResult {
        self.form.write(row).map_err(CliError::output)
    }

    /// Shows what was written so far.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn flush(&mut self) -> CliResult {
        self.form.flush().map_err(CliError::output)
    }

    /// Ends the listing.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn finish(mut self) -> CliResult {
        self.form.finish().and_then(|()| self.form.flush()).map_err(CliError::output)
    }

    /// Ends a listing that an error cut off: what was written stays readable, and nothing is added.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn abandon(mut self) -> CliResult {
        self.form.abandon().and_then(|()| self.form.flush()).map_err(CliError::output)
    }
}

/// One output format.
trait Form<R> {
    fn write(&mut self, row: &R) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn abandon(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct JsonForm<W> {
    output: W,
    is_open: bool,
}

impl<R: Record, W: Write> Form<R> for JsonForm<W> {
    fn write(&mut self, row: &R) -> io::Result<()> {
        self.output.write_all(if self.is_open { b",\n " } else { b"[" })?;
        self.is_open = true;
        json::write_compact(&mut self.output, row)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output.write_all(if self.is_open { b"]\n" } else { b"[]\n" })
    }

    fn abandon(&mut self) -> io::Result<()> {
        if self.is_open { self.output.write_all(b"]\n") } else { Ok(()) }
    }
}

struct JsonLinesForm<W> {
    output: W,
}

impl<R: Record, W: Write> Form<R> for JsonLinesForm<W> {
    fn write(&mut self, row: &R) -> io::Result<()> {
        json::write_line(&mut self.output, row)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

struct CsvForm<W: Write> {
    output: csv::Writer<W>,
    has_head: bool,
    is_terminal: bool,
}

impl<W: Write> CsvForm<W> {
    fn write_head(&mut self, fields: &[&str]) -> io::Result<()> {
        if !self.has_head {
            self.has_head = true;
            self.output.write_record(fields).map_err(io_error)?;
        }
        Ok(())
    }
}

impl<R: Record, W: Write> Form<R> for CsvForm<W> {
    fn write(&mut self, row: &R) -> io::Result<()> {
        self.write_head(R::FIELDS)?;
        let values = row.values().into_iter().map(|v| if self.is_terminal { visible(&v) } else { v });
        self.output.write_record(values).map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.write_head(R::FIELDS)
    }
}

/// The library's own conversion hides what sort of error it was, and with it that a reader went away.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        kind => io::Error::other(format!("{kind:?}")),
    }
}

struct IdsForm<W> {
    output: W,
}

impl<R: Record, W: Write> Form<R> for IdsForm<W> {
    /// An id with a line break in it must not look like two.
    fn write(&mut self, row: &R) -> io::Result<()> {
        writeln!(self.output, "{}", visible(row.id()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

struct TableForm<W> {
    output: W,
    target: Target,
    layout: Option<Layout>,
    measured: Vec<Vec<Cell>>,
}

impl<W: Write> TableForm<W> {
    fn settle(&mut self, columns: &'static [Column]) -> io::Result<()> {
        if self.layout.is_some() || self.measured.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.measured);
        let layout = self.layout.insert(Layout::new(columns, &rows, self.target.canvas));
        layout.write_head(&mut self.output)?;
        rows.iter().try_for_each(|row| layout.write_row(&mut self.output, row))
    }
}

impl<R: Record, W: Write> Form<R> for TableForm<W> {
    fn write(&mut self, row: &R) -> io::Result<()> {
        let cells = row.cells(&self.target.times);
        if let Some(layout) = &self.layout {
            return layout.write_row(&mut self.output, &cells);
        }
        self.measured.push(cells);
        if self.measured.len() < MEASURED_ROWS { Ok(()) } else { self.settle(R::COLUMNS) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.settle(R::COLUMNS)
    }

    fn abandon(&mut self) -> io::Result<()> {
        self.settle(R::COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::config::TimeStyle;
    use crate::model::Timestamp;

    #[derive(Serialize)]
    struct Thing {
        id: String,
        note: String,
    }

    impl Record for Thing {
        const COLUMNS: &'static [Column] = &[Column::words("ID"), Column::free_text("NOTE")];
        const FIELDS: &'static [&'static str] = &["id", "note"];

        fn id(&self) -> &str {
            &self.id
        }

        fn values(&self) -> Vec<String> {
            vec![self.id.clone(), self.note.clone()]
        }

        fn cells(&self, _times: &Times) -> Vec<Cell> {
            vec![Cell::new(&self.id), Cell::new(&self.note)]
        }
    }

    /// Bytes that can be looked at while a listing owns their writer.
    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn target(format: OutputFormat) -> Target {
        let times = Times { style: TimeStyle::Utc, now: Timestamp::EPOCH };
        Target { format, canvas: Canvas::default(), is_terminal: false, times }
    }

    fn things(count: usize) -> Vec<Thing> {
        let thing = |n| Thing { id: format!("id-{n}"), note: "say \"hi\",\nthen go".to_owned() };
        (1..=count).map(thing).collect()
    }

    fn written(format: OutputFormat, count: usize, finish: fn(Listing<Thing>) -> CliResult) -> String {
        let output = Shared::default();
        let mut listing = Listing::to(output.clone(), target(format));
        things(count).iter().try_for_each(|thing| listing.write(thing)).unwrap();
        finish(listing).unwrap();
        String::from_utf8(output.0.borrow().clone()).unwrap()
    }

    #[test]
    fn json_is_one_array_also_when_empty_or_cut_off() {
        let read = |text: String| serde_json::from_str::<Vec<serde_json::Value>>(&text).unwrap().len();
        assert_eq!(written(OutputFormat::Json, 0, Listing::finish), "[]\n");
        assert_eq!(read(written(OutputFormat::Json, 3, Listing::finish)), 3);
        assert_eq!(read(written(OutputFormat::Json, 2, Listing::abandon)), 2);
        assert_eq!(written(OutputFormat::Json, 0, Listing::abandon), "");
    }

    #[test]
    fn json_lines_are_documents() {
        let text = written(OutputFormat::Jsonl, 2, Listing::finish);
        let ids: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(ids[1]["id"], "id-2");
        assert_eq!(written(OutputFormat::Jsonl, 0, Listing::finish), "");
    }

    #[test]
    fn csv_has_a_head_and_quotes_what_needs_it() {
        assert_eq!(written(OutputFormat::Csv, 0, Listing::finish), "id,note\n");
        let text = written(OutputFormat::Csv, 1, Listing::finish);
        assert_eq!(text, "id,note\nid-1,\"say \"\"hi\"\",\nthen go\"\n");
    }

    #[test]
    fn a_reader_that_went_away_is_recognised_in_every_format() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let long = Thing { id: "x".repeat(100_000), note: String::new() };
        for format in [OutputFormat::Json, OutputFormat::Jsonl, OutputFormat::Csv, OutputFormat::Ids] {
            let error = Listing::to(Gone, target(format)).write(&long).unwrap_err();
            assert!(error.is_broken_pipe(), "{format:?}: {error:?}");
        }
    }

    #[test]
    fn ids_are_one_a_line_whatever_they_hold() {
        assert_eq!(written(OutputFormat::Ids, 2, Listing::finish), "id-1\nid-2\n");
        let output = Shared::default();
        let mut listing = Listing::to(output.clone(), target(OutputFormat::Ids));
        listing.write(&Thing { id: "a\nb".to_owned(), note: String::new() }).unwrap();
        listing.finish().unwrap();
        assert_eq!(output.0.borrow().as_slice(), b"a\\nb\n");
    }

    #[test]
    fn a_table_is_written_as_soon_as_it_is_measured() {
        let output = Shared::default();
        let mut listing = Listing::to(output.clone(), target(OutputFormat::Table));
        let rows = things(MEASURED_ROWS + 1);
        rows[..MEASURED_ROWS - 1].iter().try_for_each(|thing| listing.write(thing)).unwrap();
        assert_eq!(output.0.borrow().len(), 0);
        listing.write(&rows[MEASURED_ROWS - 1]).unwrap();
        let lines = |output: &Shared| output.0.borrow().iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines(&output), MEASURED_ROWS + 1);
        listing.write(&rows[MEASURED_ROWS]).unwrap();
        assert_eq!(lines(&output), MEASURED_ROWS + 2);
    }

    #[test]
    fn an_empty_table_has_no_head() {
        assert_eq!(written(OutputFormat::Table, 0, Listing::finish), "");
    }
}
