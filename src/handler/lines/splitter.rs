//! From what a child writes to its lines, in bounded memory.

/// What stays allocated between lines.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Collects bytes and gives out whole lines, none longer than its limit.
#[derive(Debug)]
pub(super) struct Splitter {
    bytes: Vec<u8>,
    /// Where the line that is to be given out next begins.
    start: usize,
    /// No line ends before this.
    searched: usize,
    limit: usize,
}

/// A line that is longer than the limit; its beginning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) Vec<u8>);

impl Splitter {
    pub(super) fn new(limit: usize) -> Self {
        Splitter { bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// When it is longer than the limit, whether its end is known or not.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = end.map(|offset| self.searched + offset);
        let length = end.unwrap_or(self.bytes.len()) - self.start;
        if length > self.limit {
            return Err(TooLong(self.bytes[self.start..self.start + self.limit].to_vec()));
        }
        self.searched = end.map_or(self.bytes.len(), |end| end + 1);
        let line = end.map(|end| self.bytes[self.start..end].to_vec());
        if line.is_some() {
            self.start = self.searched;
        }
        self.forget_what_was_given();
        Ok(line)
    }

    /// What stands behind the last whole line.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Gives out what stands behind the last whole line, as there will be no more.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.rest().to_vec();
        *self = Splitter::new(self.limit);
        rest
    }

    /// Moves what is left to the front once nothing but an unfinished line is.
    fn forget_what_was_given(&mut self) {
        if self.searched == self.bytes.len() && self.start > 0 {
            self.bytes.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
            self.bytes.shrink_to(KEPT_CAPACITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(splitter: &mut Splitter) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = splitter.next_line().unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        lines
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let text = "one\n\ntwo and a half\nthree";
        for size in 1..text.len() {
            let mut splitter = Splitter::new(100);
            let mut lines = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                splitter.push(chunk);
                lines.extend(lines_of(&mut splitter));
            }
            assert_eq!(lines, ["one", "", "two and a half"], "in chunks of {size}");
            assert_eq!(splitter.rest(), b"three");
            assert_eq!(splitter.take_rest(), b"three");
            assert_eq!(splitter.rest(), b"");
        }
    }

    #[test]
    fn a_line_up_to_the_limit_is_whole_and_a_longer_one_is_refused() {
        let mut splitter = Splitter::new(4);
        splitter.push(b"abcd\nabcde\n");
        assert_eq!(splitter.next_line(), Ok(Some(b"abcd".to_vec())));
        assert_eq!(splitter.next_line(), Err(TooLong(b"abcd".to_vec())));
        let mut endless = Splitter::new(4);
        endless.push(b"abcd");
        assert_eq!(endless.next_line(), Ok(None));
        endless.push(b"e");
        assert_eq!(endless.next_line(), Err(TooLong(b"abcd".to_vec())));
    }

    #[test]
    fn memory_is_given_back_after_a_large_line() {
        let mut splitter = Splitter::new(1 << 20);
        splitter.push(&vec![b'x'; 1 << 20]);
        splitter.push(b"\n");
        assert_eq!(splitter.next_line().unwrap().unwrap().len(), 1 << 20);
        assert!(splitter.bytes.capacity() <= KEPT_CAPACITY, "{}", splitter.bytes.capacity());
    }
}
