//! Untrusted text: made visible, measured, and cut where it has to be.

use std::fmt::Write as _;

use comfy_table::{ColumnConstraint, Table, Width, presets};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Shows that something was cut off.
pub const ELLIPSIS: &str = "…";

/// The most columns that a text is drawn with. comfy-table counts in 16 bits; this leaves some for what is around it.
pub const MOST_COLUMNS: u16 = 60_000;

/// Whether a terminal could take the character for a command, or a reader be deceived by it: control characters,
/// bidirectional marks and overrides, and characters that take no place and join nothing.
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(character,
            '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}'
            | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` on one line with everything harmful made visible, such as `\n`, `\x1b` and `\u{202e}`.
pub fn visible(text: &str) -> String {
    escape(text, |_| false)
}

/// Like [`visible`], but lines stay lines.
pub fn visible_lines(text: &str) -> String {
    escape(text, |character| character == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if !is_harmful(character) || keep(character) {
            shown.push(character);
            continue;
        }
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            '\0'..='\u{ff}' => _ = write!(shown, "\\x{:02x}", u32::from(character)),
            _ => _ = write!(shown, "\\u{{{:x}}}", u32::from(character)),
        }
    }
    shown
}

/// The columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `limit` columns; what is cut off is replaced by `…`. Never cuts within what is seen as one
/// character.
pub fn fit(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let room = limit.saturating_sub(width(ELLIPSIS));
    let mut kept = String::new();
    let mut columns = 0;
    for grapheme in text.graphemes(true) {
        columns += width(grapheme);
        if columns > room {
            break;
        }
        kept.push_str(grapheme);
    }
    if limit > 0 {
        kept.push_str(ELLIPSIS);
    }
    kept
}

/// `text` in lines of at most `limit` columns, broken between words where possible.
pub fn wrap(text: &str, limit: usize) -> Vec<String> {
    let limit = u16::try_from(limit).map_or(MOST_COLUMNS, |limit| limit.min(MOST_COLUMNS));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_row([text]);
    for column in table.column_iter_mut() {
        column.set_padding((0, 0)).set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(limit)));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_harmful_passes() {
        assert_eq!(visible("a\u{1b}[31mb\r\n\t\0\u{7f}\u{9b}"), r"a\x1b[31mb\r\n\t\x00\x7f\x9b");
        assert_eq!(visible("user\u{202e}txt.exe\u{2066}\u{200f}"), r"user\u{202e}txt.exe\u{2066}\u{200f}");
        assert_eq!(visible("zero\u{200b}width\u{feff}"), r"zero\u{200b}width\u{feff}");
        assert_eq!(visible_lines("a\nb\u{1b}"), "a\nb\\x1b");
    }

    #[test]
    fn text_of_all_scripts_passes_untouched() {
        for text in ["日本語", "שלום", "مرحبا", "👩‍👩‍👧‍👦", "नमस्ते", "می‌خواهم", "é"]
        {
            assert_eq!(visible(text), text);
        }
    }

    #[test]
    fn cutting_keeps_to_the_limit_and_to_whole_characters() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdefg", 6), "abcde…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 3), "👩‍👩‍👧‍👦…");
        assert_eq!(fit("abc", 1), "…");
        assert_eq!(fit("abc", 0), "");
        for limit in 0..20 {
            assert!(width(&fit("a日é👩‍👩‍👧‍👦x\u{301}日本語שלום", limit)) <= limit);
        }
    }

    #[test]
    fn wrapping_keeps_every_word() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("日本語", 3), ["日", "本", "語"]);
    }
}
