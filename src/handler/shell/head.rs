//! An output as a whole, up to a limit.

/// Keeps the first bytes of what flows through it.
#[derive(Debug)]
pub(super) struct Head {
    kept: Vec<u8>,
    limit: usize,
    is_cut: bool,
    is_ended: bool,
}

/// What a child wrote, as far as it was kept.
#[derive(Debug)]
pub(super) enum Written {
    /// All of it.
    Whole(Vec<u8>),
    /// It was more than the limit, which lies in this line.
    TooMuch { line: u64 },
    /// Its end was not reached: something held it open for too long, or it could not be read.
    Unended,
}

impl Head {
    pub(super) fn new(limit: usize) -> Self {
        Head { kept: Vec::new(), limit, is_cut: false, is_ended: false }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = (self.limit - self.kept.len()).min(bytes.len());
        self.is_cut |= room < bytes.len();
        self.kept.extend_from_slice(&bytes[..room]);
    }

    /// The output's end was reached.
    pub(super) fn ended(&mut self) {
        self.is_ended = true;
    }

    /// What it is when nothing more is read.
    pub(super) fn into_written(self) -> Written {
        if self.is_cut {
            let line_ends = self.kept.iter().filter(|byte| **byte == b'\n').count() as u64;
            return Written::TooMuch { line: line_ends + 1 };
        }
        if self.is_ended { Written::Whole(self.kept) } else { Written::Unended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(chunks: &[&[u8]], is_ended: bool) -> Written {
        let mut head = Head::new(4);
        for chunk in chunks {
            head.push(chunk);
        }
        if is_ended {
            head.ended();
        }
        head.into_written()
    }

    #[test]
    fn an_output_is_whole_up_to_the_limit() {
        assert!(matches!(written(&[b"a\n", b"", b"b\n"], true), Written::Whole(bytes) if bytes == b"a\nb\n"));
        assert!(matches!(written(&[b"a\n", b"b\n", b"c"], true), Written::TooMuch { line: 3 }));
        assert!(matches!(written(&[b"abcdefgh", b"c"], false), Written::TooMuch { line: 1 }));
        assert!(matches!(written(&[b"a\n"], false), Written::Unended));
    }
}
