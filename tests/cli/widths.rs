//! Tables with names and errors in every script, and with what wants to play tricks on a terminal, at every width.

use relayctl::model::NewEvent;
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use crate::harness::{Sandbox, ago, buried};
use crate::terminal::{on, without_colours};

const COLUMNS: [u16; 3] = [40, 80, 200];

/// Wide letters, a family of joined emoji, letters from right to left with and without marks that turn the direction, a letter
/// of two code points, and sequences that colour, clear, rename or move back.
const NAMES: [&str; 8] = [
    "確認メール:送信",
    "👨‍👩‍👧‍👦 family",
    "שלום עולם",
    "\u{202e}evil\u{2066}",
    "e\u{301}te\u{301}",
    "\u{1b}[31mred\u{1b}[2J",
    "\u{1b}]0;title\u{7}",
    "back\u{8}\u{8}\r\u{9b}1m",
];

fn crowded() -> Sandbox {
    let sandbox = Sandbox::new();
    for (n, name) in NAMES.iter().enumerate() {
        let event =
            NewEvent::new(format!("type {name}"), json!({})).handler(*name).key(format!("key {name}"));
        sandbox.append(&[event], ago(100 * (n as u64 + 1)));
        let error =
            format!("{name} could not be reached: {name}, which is a name that does not end soon {name}");
        assert_eq!(sandbox.settle(name, &buried(&error), ago(50)), 1);
    }
    sandbox
}

/// What stands at a column of the screen counted by its cells, whatever letters are made of.
fn is_blank_at(line: &str, column: usize) -> bool {
    let mut start = 0;
    for letter in unicode_segmentation::UnicodeSegmentation::graphemes(line, true) {
        let end = start + letter.width();
        if column < end {
            return letter == " ";
        }
        start = end;
    }
    true
}

/// Where the gaps between the columns of a table are: two blanks in its head, for each but the first of its labels.
fn gaps(head: &str) -> Vec<usize> {
    let labels = head.match_indices("  ").map(|(at, _)| at);
    labels.filter(|at| !head[at + 2..].starts_with(' ') && !head[at + 2..].is_empty()).collect()
}

fn assert_fits(line: &str, columns: u16, screen: &str) {
    for shown in screen.lines() {
        // What a bar drew is overwritten from the beginning of its line.
        let shown = shown.rsplit('\r').next().unwrap_or_default();
        let width = shown.width();
        assert!(width <= columns.into(), "{line} at {columns}: {width} columns in {shown:?}");
        assert!(!shown.chars().any(char::is_control), "{line} at {columns}: {shown:?}");
        assert!(!shown.contains(['\u{202e}', '\u{2066}', '\u{9b}']), "{line} at {columns}: {shown:?}");
    }
}

#[test]
fn no_line_is_wider_than_the_screen_and_no_control_reaches_it() {
    let sandbox = crowded();
    let id = sandbox.go("list --limit 1 -o ids").exits(0).stdout;
    let (show, explain) = (format!("show {}", id.trim()), format!("explain {}", id.trim()));
    for columns in COLUMNS {
        for line in ["list", "errors", "stats", "keys list"] {
            assert_fits(line, columns, &without_colours(&on(&sandbox, line, columns, &[])));
        }
        for line in [&show, &explain] {
            let screen = without_colours(&on(&sandbox, line, columns, &[]));
            assert!(
                !screen.chars().any(|letter| letter.is_control() && letter != '\n'),
                "{line}: {screen:?}"
            );
        }
    }
}

#[test]
fn every_row_has_its_columns_at_the_same_place() {
    let sandbox = crowded();
    for columns in COLUMNS {
        for line in ["list", "errors", "stats", "keys list"] {
            let screen = without_colours(&on(&sandbox, line, columns, &[]));
            let mut lines = screen.lines();
            let head = lines.next().unwrap().rsplit('\r').next().unwrap();
            // Numbers stand to the right; elsewhere what is indented belongs to the row before it.
            let is_row =
                |shown: &&str| !shown.is_empty() && (line == "keys list" || !shown.starts_with("    "));
            let rows: Vec<&str> = lines.filter(is_row).collect();
            assert!(rows.len() >= NAMES.len(), "{line}: {screen}");
            for gap in gaps(head) {
                // A label that stands to the right of its column leaves the gap in front of its longest cell.
                let is_gap =
                    |at: usize| rows.iter().all(|row| is_blank_at(row, at) && is_blank_at(row, at + 1));
                let before = head[..gap].trim_end().len();
                assert!((before..=gap).any(is_gap), "{line} at {columns}, column {gap}:\n{screen}");
            }
        }
    }
}
