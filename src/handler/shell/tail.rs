//! The end of an output, in bounded memory.

use std::collections::VecDeque;

/// Keeps the last bytes of what flows through it.
#[derive(Debug)]
pub(in crate::handler) struct Tail {
    kept: VecDeque<u8>,
    limit: usize,
    is_cut: bool,
}

impl Tail {
    pub(in crate::handler) fn new(limit: usize) -> Self {
        Tail { kept: VecDeque::new(), limit, is_cut: false }
    }

    pub(in crate::handler) fn push(&mut self, bytes: &[u8]) {
        let surplus = (self.kept.len() + bytes.len()).saturating_sub(self.limit);
        self.is_cut |= surplus > 0;
        let from_kept = surplus.min(self.kept.len());
        self.kept.drain(..from_kept);
        self.kept.extend(&bytes[surplus - from_kept..]);
    }

    /// The text, at most `limit` bytes of it, without blanks at its ends; a `…` stands for what was cut off before it.
    ///
    /// What is no UTF-8 becomes U+FFFD. Control characters are kept: those who show the text make them visible.
    pub(in crate::handler) fn text(&self, limit: usize) -> String {
        let (front, back) = self.kept.as_slices();
        let bytes = [front, back].concat();
        let lossy =
            String::from_utf8_lossy(if self.is_cut { skip_partial_character(&bytes) } else { &bytes });
        let text = lossy.trim();
        let room = limit.saturating_sub('…'.len_utf8());
        if !self.is_cut && text.len() <= limit {
            return text.to_owned();
        }
        let start = text.ceil_char_boundary(text.len().saturating_sub(room));
        format!("…{}", &text[start..])
    }
}

impl Tail {
    /// The last line that is not blank, or what is left of it.
    pub(super) fn last_line(&self) -> String {
        let (front, back) = self.kept.as_slices();
        let bytes = [front, back].concat();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    }
}

/// Without the continuation bytes of a character whose first byte was cut off.
fn skip_partial_character(bytes: &[u8]) -> &[u8] {
    let partial = bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    &bytes[partial..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(chunks: &[&[u8]], limit: usize) -> Tail {
        let mut tail = Tail::new(limit);
        for chunk in chunks {
            tail.push(chunk);
        }
        tail
    }

    #[test]
    fn keeps_everything_up_to_its_limit_and_then_the_end() {
        assert_eq!(tail_of(&[b"ab", b"cd"], 4).text(100), "abcd");
        assert_eq!(tail_of(&[b"ab", b"cde"], 4).text(100), "…bcde");
        assert_eq!(tail_of(&[b"ab", b"cdefgh"], 4).text(100), "…efgh");
        assert_eq!(tail_of(&[b"ab", b"", b"cdefgh", b"i"], 4).text(100), "…fghi");
        assert_eq!(tail_of(&[], 4).text(100), "");
    }

    #[test]
    fn a_character_that_was_cut_leaves_no_garbage() {
        assert_eq!(tail_of(&["xé€".as_bytes()], 4).text(100), "…€");
        assert_eq!(tail_of(&["😀ab".as_bytes()], 3).text(100), "…ab");
        assert_eq!(tail_of(&["😀ab".as_bytes()], 100).text(5), "…ab");
    }

    #[test]
    fn whatever_the_bytes_the_text_fits() {
        let text = tail_of(&[&[0xff; 8_000]], 8_000).text(8_000);
        assert!(text.len() <= 8_000 && text.starts_with('…') && text.ends_with('\u{fffd}'));
        assert_eq!(tail_of(&[b"a\0b\x1b[31m\n"], 100).text(100), "a\0b\x1b[31m");
    }
}
