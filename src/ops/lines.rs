//! The lines of a stream, read within bounds.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::model::{EVENT_LINE_ROOT as ROOT, InvalidInput};

/// The longest line that is read, in bytes. The text of the largest event is longer than its stored form where
/// characters are escaped.
pub const MAX_LINE_BYTES: u64 = 32 * 1024 * 1024;

/// The lines of a stream, with their numbers.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    number: u64,
    limit: u64,
}

/// Why a line could not be read.
#[derive(Debug)]
pub(super) enum LineError {
    Invalid(InvalidInput),
    Io(std::io::Error),
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Lines { reader, number: 0, limit: MAX_LINE_BYTES }
    }

    /// The number of the line that was read, or tried, last; the first is 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank, without its end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, LineError> {
        loop {
            self.number += 1;
            let mut bytes = Vec::new();
            let mut bounded = (&mut self.reader).take(self.limit + 1);
            let read = bounded.read_until(b'\n', &mut bytes).await.map_err(LineError::Io)?;
            if read == 0 {
                return Ok(None);
            }
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            } else if bytes.len() as u64 > self.limit {
                self.skip_line().await.map_err(LineError::Io)?;
            }
            if bytes.len() as u64 > self.limit {
                let reason = format!("is longer than {} MiB", self.limit >> 20);
                return Err(LineError::Invalid(InvalidInput::new(ROOT, reason)));
            }
            let line = String::from_utf8(bytes).map_err(|error| LineError::Invalid(not_utf8(&error)))?;
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// Goes on behind the end of the line that is being read.
    async fn skip_line(&mut self) -> std::io::Result<()> {
        loop {
            let bytes = self.reader.fill_buf().await?;
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let (read, is_over) = (end.map_or(bytes.len(), |end| end + 1), end.is_some() || bytes.is_empty());
            self.reader.consume(read);
            if is_over {
                return Ok(());
            }
        }
    }
}

fn not_utf8(error: &std::string::FromUtf8Error) -> InvalidInput {
    let at = error.utf8_error().valid_up_to() + 1;
    InvalidInput::new(ROOT, format!("is not valid UTF-8 at byte {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(bytes: &[u8], limit: u64) -> Vec<Result<(u64, String), String>> {
        let mut lines = Lines { limit, ..Lines::new(bytes) };
        let mut read = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => read.push(Ok((lines.number(), line))),
                Ok(None) => return read,
                Err(LineError::Invalid(error)) => read.push(Err(format!("line {}: {error}", lines.number()))),
                Err(LineError::Io(error)) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_counted_and_blank_ones_left_out() {
        let read = read_all(b"a\n\n \t\r\nb\r\nc", 10).await;
        assert_eq!(read, [Ok((1, "a".to_owned())), Ok((4, "b\r".to_owned())), Ok((5, "c".to_owned()))]);
        assert_eq!(read_all(b"", 10).await, []);
    }

    #[tokio::test]
    async fn a_line_has_a_greatest_length() {
        assert_eq!(read_all(b"1234\n", 4).await, [Ok((1, "1234".to_owned()))]);
        assert_eq!(read_all(b"1234", 4).await, [Ok((1, "1234".to_owned()))]);
        let refused = [Ok((1, "x".to_owned())), Err("line 2: event: is longer than 0 MiB".to_owned())];
        assert_eq!(read_all(b"x\n12345\n", 4).await, refused);
        assert_eq!(read_all(b"x\n12345", 4).await, refused);
        let [x, too_long] = refused;
        assert_eq!(read_all(b"x\n1234567890\ny\n", 4).await, [x, too_long, Ok((3, "y".to_owned()))]);
    }

    #[tokio::test]
    async fn a_line_is_utf_8() {
        let read = read_all(b"ok\nab\xffc\n", 10).await;
        assert_eq!(read[1], Err("line 2: event: is not valid UTF-8 at byte 3".to_owned()));
    }
}
