//! Tables that fit the terminal, and that memory does not grow with.
//!
//! The columns are measured on the first rows and keep their widths from there on. Where a row does not fit the
//! terminal, columns leave it one by one, in an order that each table chooses, for a line of their own below the row:
//! at 80 columns an identifier can be copied and an error read, without a line that wraps. Only what does not fit
//! even there is cut, and ends with `…`. Without a terminal nothing folds and nothing is cut.
//!
//! Which column stands where is decided here, for a whole table; comfy-table draws it, a row at a time.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};

use super::text::{MOST_COLUMNS, fit, visible, width, wrap};
use crate::cli::ui::Meaning;

/// Spaces between two columns.
const GAP: usize = 2;

/// What a line below a row begins with.
const INDENT: &str = "    ";

/// The least that a column of free text gets before it leaves the row.
const LEAST_FREE_TEXT: usize = 24;

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    align: CellAlignment,
    /// When it leaves a row that does not fit: the lowest number first. `None` keeps it there.
    folds: Option<u8>,
    /// What its value is introduced with on the line below.
    label: &'static str,
    /// Whether it can be cut to the room that the others leave.
    is_free_text: bool,
    /// Whether it leaves a row that would cut it, and takes as many lines below as it needs.
    wraps: bool,
}

impl Column {
    /// A column of words.
    pub const fn words(title: &'static str) -> Column {
        Column {
            title,
            align: CellAlignment::Left,
            folds: None,
            label: "",
            is_free_text: false,
            wraps: false,
        }
    }

    /// A column of numbers.
    pub const fn number(title: &'static str) -> Column {
        Column { align: CellAlignment::Right, ..Column::words(title) }
    }

    /// A column of text of any length, which comes last.
    pub const fn free_text(title: &'static str) -> Column {
        Column { is_free_text: true, ..Column::words(title) }
    }

    /// Lets it leave a row that does not fit, the lowest number first; `label` introduces its value then.
    pub const fn folds(self, order: u8, label: &'static str) -> Column {
        Column { folds: Some(order), label, ..self }
    }

    /// Never cuts it: it goes below and takes as many lines there as it needs.
    pub const fn wraps(self) -> Column {
        Column { wraps: true, ..self }
    }
}

/// One value of a row, made harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    meaning: Meaning,
}

impl Cell {
    /// A value from anywhere.
    pub fn new(text: impl AsRef<str>) -> Cell {
        Cell { text: visible(text.as_ref()), meaning: Meaning::Plain }
    }

    /// Nothing.
    pub fn empty() -> Cell {
        Cell::new("")
    }

    /// A value that may be absent.
    pub fn maybe(text: Option<impl AsRef<str>>) -> Cell {
        text.map_or_else(Cell::empty, Cell::new)
    }

    /// Says what it means, which decides its colour.
    pub fn meaning(self, meaning: Meaning) -> Cell {
        Cell { meaning, ..self }
    }
}

/// Where a table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canvas {
    /// The columns of the terminal; `None` when it is none.
    pub width: Option<usize>,
    /// Whether it takes colours.
    pub has_color: bool,
}

/// The place of each column, fixed for a whole table.
#[derive(Debug)]
pub struct Layout {
    columns: &'static [Column],
    canvas: Canvas,
    /// Columns in the row, with their widths.
    inline: Vec<(usize, usize)>,
    /// Columns on the line below.
    below: Vec<usize>,
}

impl Layout {
    /// Places `columns` so that `rows` fit the canvas.
    pub fn new(columns: &'static [Column], rows: &[Vec<Cell>], canvas: Canvas) -> Layout {
        let natural: Vec<usize> =
            columns.iter().enumerate().map(|(i, c)| natural_width(c, i, rows)).collect();
        let mut inline: Vec<usize> = (0..columns.len()).collect();
        let mut below = Vec::new();
        let room = canvas.width.unwrap_or(usize::MAX);
        while least_width(columns, &inline, &natural) > room {
            let foldable = inline.iter().copied().filter(|&column| columns[column].folds.is_some());
            let Some(first) = foldable.min_by_key(|&column| columns[column].folds) else { break };
            inline.retain(|&column| column != first);
            below.push(first);
        }
        below.sort_unstable();
        let surplus =
            canvas.width.map_or(0, |room| room.saturating_sub(least_width(columns, &inline, &natural)));
        let place = |column: usize| {
            let least = least_of(&columns[column], natural[column]);
            // Free text comes last, and takes what is left: later rows may have more of it than the first ones.
            let share = if columns[column].is_free_text { surplus } else { 0 };
            (column, least.saturating_add(share))
        };
        let inline = inline.into_iter().map(place).collect();
        Layout { columns, canvas, inline, below }
    }

    /// Writes the titles.
    ///
    /// # Errors
    /// When `output` cannot be written.
    pub fn write_head(&self, output: &mut impl Write) -> io::Result<()> {
        let titles: Vec<Cell> =
            self.columns.iter().map(|column| Cell::new(column.title).meaning(Meaning::Heading)).collect();
        self.write_inline(output, &titles)
    }

    /// Writes one row, and the line below it if there is one.
    ///
    /// # Errors
    /// When `output` cannot be written.
    pub fn write_row(&self, output: &mut impl Write, row: &[Cell]) -> io::Result<()> {
        self.write_inline(output, row)?;
        for line in self.lines_below(row) {
            writeln!(output, "{INDENT}{line}")?;
        }
        Ok(())
    }

    /// Colours come last, between the spaces that comfy-table put around the bare texts: they take no columns.
    fn write_inline(&self, output: &mut impl Write, row: &[Cell]) -> io::Result<()> {
        let texts: Vec<String> = self.inline.iter().map(|&place| self.shown(place, row)).collect();
        // In a pipe nothing is cut: what is too wide to be drawn is drawn in part, and then written whole.
        let stand_ins: Vec<String> = texts.iter().map(|text| fit(text, MOST_COLUMNS.into())).collect();
        let drawn = self.draw(&stand_ins);
        let mut rest = drawn.as_str();
        let mut line = String::new();
        for ((&(column, _), text), stand_in) in self.inline.iter().zip(&texts).zip(&stand_ins) {
            let (space, after) = rest.split_once(stand_in.as_str()).unwrap_or(("", rest));
            line.push_str(space);
            line.push_str(&row[column].meaning.paint(text, self.canvas.has_color));
            rest = after;
        }
        writeln!(output, "{}", line.trim_end())
    }

    /// `texts` on one line, each in its column. One that is wider than its column moves those after it.
    fn draw(&self, texts: &[String]) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).add_row(texts);
        for (place, (drawn, &(column, columns))) in table.column_iter_mut().zip(&self.inline).enumerate() {
            let gap = if place == 0 { 0 } else { GAP as u16 };
            let least = u16::try_from(columns).map_or(MOST_COLUMNS, |columns| columns.min(MOST_COLUMNS));
            drawn.set_padding((gap, 0));
            drawn.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(gap + least)));
            drawn.set_cell_alignment(self.columns[column].align);
        }
        table.lines().collect()
    }

    /// What a row shows in a place.
    fn shown(&self, (column, columns): (usize, usize), row: &[Cell]) -> String {
        let cell = &row[column];
        if self.overflows(column, columns, cell) {
            String::new()
        } else {
            self.cut(column, &cell.text, columns)
        }
    }

    /// The first column is the one to copy, and is never cut; nothing is without a terminal.
    fn cut(&self, column: usize, text: &str, columns: usize) -> String {
        if column == 0 || self.canvas.width.is_none() { text.to_owned() } else { fit(text, columns) }
    }

    /// Whether free text has so little room in the row that this one is better off below.
    fn overflows(&self, column: usize, columns: usize, cell: &Cell) -> bool {
        let column = &self.columns[column];
        let is_cramped = column.wraps || columns < LEAST_FREE_TEXT;
        column.is_free_text && column.folds.is_some() && is_cramped && width(&cell.text) > columns
    }

    /// The columns that a row has below: those that are there in every row, and free text that overflows in this one.
    fn below(&self, row: &[Cell]) -> Vec<usize> {
        let overflowing =
            self.inline.iter().filter(|&&(column, columns)| self.overflows(column, columns, &row[column]));
        let all = self.below.iter().copied().chain(overflowing.map(|&(column, _)| column));
        all.filter(|&column| !row[column].text.is_empty()).collect()
    }

    fn lines_below(&self, row: &[Cell]) -> Vec<String> {
        let room = self.canvas.width.unwrap_or(usize::MAX).saturating_sub(INDENT.len());
        let mut lines: Vec<(usize, String)> = Vec::new();
        for (text, meaning) in self.pieces_below(row, room) {
            let columns = width(&text);
            let painted = meaning.paint(&text, self.canvas.has_color);
            match lines.last_mut() {
                Some((used, line)) if *used + GAP + columns <= room => {
                    *used += GAP + columns;
                    *line += &format!("{:GAP$}{painted}", "");
                }
                _ => lines.push((columns, painted)),
            }
        }
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn pieces_below(&self, row: &[Cell], room: usize) -> Vec<(String, Meaning)> {
        let mut pieces = Vec::new();
        for column in self.below(row) {
            let text = format!("{}{}", self.columns[column].label, row[column].text);
            let parts = if self.columns[column].wraps { wrap(&text, room) } else { vec![fit(&text, room)] };
            pieces.extend(parts.into_iter().map(|part| (part, row[column].meaning)));
        }
        pieces
    }
}

fn natural_width(column: &Column, index: usize, rows: &[Vec<Cell>]) -> usize {
    rows.iter().map(|row| width(&row[index].text)).max().unwrap_or(0).max(width(column.title))
}

fn least_of(column: &Column, natural: usize) -> usize {
    if column.is_free_text && !column.wraps { natural.min(LEAST_FREE_TEXT) } else { natural }
}

fn least_width(columns: &[Column], inline: &[usize], natural: &[usize]) -> usize {
    let gaps = GAP * inline.len().saturating_sub(1);
    inline.iter().map(|&column| least_of(&columns[column], natural[column])).sum::<usize>() + gaps
}

/// Writes a whole table that is small enough to be held.
///
/// # Errors
/// When `output` cannot be written.
pub fn write_table(
    output: &mut impl Write,
    columns: &'static [Column],
    rows: &[Vec<Cell>],
    canvas: Canvas,
) -> io::Result<()> {
    let layout = Layout::new(columns, rows, canvas);
    layout.write_head(output)?;
    rows.iter().try_for_each(|row| layout.write_row(output, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::words("ID"),
        Column::words("NAME").folds(1, ""),
        Column::number("N").folds(2, "n "),
        Column::free_text("ERROR").folds(0, ""),
    ];

    fn row(id: &str, name: &str, n: &str, error: &str) -> Vec<Cell> {
        [id, name, n, error].map(Cell::new).to_vec()
    }

    fn drawn(width: Option<usize>, rows: &[Vec<Cell>]) -> String {
        let mut bytes = Vec::new();
        write_table(&mut bytes, COLUMNS, rows, Canvas { width, has_color: false }).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn sample() -> Vec<Vec<Cell>> {
        vec![
            row("id-1", "short", "7", "connection refused by the database of the warehouse"),
            row("id-2", "日本語の名前", "12345", ""),
            row("id-3", "👩‍👩‍👧‍👦 family", "", "\u{1b}[31mred\u{1b}[0m\nnext \u{202e}line"),
            row("id-4", "שלום עולם", "1", "x"),
        ]
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        insta::assert_snapshot!(drawn(None, &sample()), @r"
        ID    NAME              N  ERROR
        id-1  short             7  connection refused by the database of the warehouse
        id-2  日本語の名前  12345
        id-3  👩‍👩‍👧‍👦 family            \x1b[31mred\x1b[0m\nnext \u{202e}line
        id-4  שלום עולם         1  x
        ");
    }

    #[test]
    fn a_wide_terminal_takes_one_line_a_row() {
        insta::assert_snapshot!(drawn(Some(60), &sample()), @r"
        ID    NAME              N  ERROR
        id-1  short             7  connection refused by the databa…
        id-2  日本語の名前  12345
        id-3  👩‍👩‍👧‍👦 family            \x1b[31mred\x1b[0m\nnext \u{202e…
        id-4  שלום עולם         1  x
        ");
    }

    #[test]
    fn a_narrow_terminal_folds_the_free_text_first() {
        insta::assert_snapshot!(drawn(Some(40), &sample()), @r"
        ID    NAME              N
        id-1  short             7
            connection refused by the database …
        id-2  日本語の名前  12345
        id-3  👩‍👩‍👧‍👦 family
            \x1b[31mred\x1b[0m\nnext \u{202e}li…
        id-4  שלום עולם         1
            x
        ");
    }

    #[test]
    fn a_very_narrow_terminal_keeps_the_first_column() {
        insta::assert_snapshot!(drawn(Some(12), &sample()[..2]), @r"
        ID        N
        id-1      7
            short
            connect…
        id-2  12345
            日本語…
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_or_holds_a_raw_control() {
        for width_of_terminal in 20..200 {
            for line in drawn(Some(width_of_terminal), &sample()).lines() {
                assert!(width(line) <= width_of_terminal, "{width_of_terminal}: {line}");
                assert!(!line.chars().any(super::super::text::is_harmful), "{line:?}");
                assert_eq!(line.trim_end(), line);
            }
        }
    }

    #[test]
    fn later_rows_keep_to_the_widths_of_the_first_ones() {
        let first = [row("id-1", "ab", "1", "")];
        let layout = Layout::new(COLUMNS, &first, Canvas { width: Some(80), has_color: false });
        let mut bytes = Vec::new();
        layout.write_row(&mut bytes, &row("id-2-and-more", "longer than before", "2", "")).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), "id-2-and-more  lon…  2\n");
    }

    #[test]
    fn an_error_after_many_rows_without_one_is_not_squeezed() {
        let first = [row("id-1", "ab", "1", "")];
        for (columns, expected) in [
            (18, "id-2  ab    2\n    no route to h…\n"),
            (40, "id-2  ab    2  no route to host in zone…\n"),
            (60, "id-2  ab    2  no route to host in zone a\n"),
        ] {
            let layout = Layout::new(COLUMNS, &first, Canvas { width: Some(columns), has_color: false });
            let mut bytes = Vec::new();
            layout.write_row(&mut bytes, &row("id-2", "ab", "2", "no route to host in zone a")).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected, "{columns}");
        }
    }

    #[test]
    fn a_text_wider_than_any_table_is_whole_in_a_pipe() {
        let long = "word ".repeat(20_000) + "end";
        let rows = [row(&long, "ab", "1", &long)];
        let text = drawn(None, &rows);
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with(&format!("\n{long}  ab    1  {long}\n")), "{} bytes", text.len());
    }

    #[test]
    fn the_drawing_and_the_layout_measure_alike() {
        for text in ["abc", "日本語", "👩‍👩‍👧‍👦", "שלום", "नमस्ते", "e\u{301}", "❤\u{fe0f}", "🇩🇪", "ﷺ", "…"]
        {
            let mut table = Table::new();
            table.add_row([text]);
            assert_eq!(table.column_max_content_widths(), [u16::try_from(width(text)).unwrap()], "{text}");
        }
    }

    #[test]
    fn colours_do_not_count_as_columns() {
        let rows =
            [vec![Cell::new("id").meaning(Meaning::Error), Cell::new("n"), Cell::new("1"), Cell::empty()]];
        let mut bytes = Vec::new();
        write_table(&mut bytes, COLUMNS, &rows, Canvas { width: None, has_color: true }).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.ends_with("\u{1b}[1m\u{1b}[31mid\u{1b}[0m  n     1\n"), "{text:?}");
    }
}
