//! JSON that is safe to look at: what a terminal could take for a command is written as an escape.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use super::text::is_harmful;

/// Writes `document` in one line, with the line's end.
///
/// # Errors
/// When `output` cannot be written.
pub fn write_line(output: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    write_compact(output, document)?;
    output.write_all(b"\n")
}

/// Writes `document` without any white space around it.
///
/// # Errors
/// When `output` cannot be written.
pub fn write_compact(output: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    write(output, document, CompactFormatter)
}

/// Writes `document` indented, with the line's end.
///
/// # Errors
/// When `output` cannot be written.
pub fn write_pretty(output: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    write(output, document, PrettyFormatter::new())?;
    output.write_all(b"\n")
}

fn write(output: &mut impl Write, document: &impl Serialize, formatter: impl Formatter) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(output, Safe(formatter));
    document.serialize(&mut serializer).map_err(io::Error::from)
}

/// Escapes within strings what serde_json leaves as it is: DEL, the C1 controls and the bidirectional overrides.
struct Safe<F>(F);

macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, writer: &mut W, $($argument: $type),*) -> io::Result<()> {
            self.0.$name(writer, $($argument),*)
        })*
    };
}

impl<F: Formatter> Formatter for Safe<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_harmful) {
            let (before, harmful) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut characters = harmful.chars();
            for unit in characters.next().into_iter().flat_map(utf16) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    delegate! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }
}

fn utf16(character: char) -> Vec<u16> {
    character.encode_utf16(&mut [0; 2]).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: &serde_json::Value) -> String {
        let mut bytes = Vec::new();
        write_line(&mut bytes, value).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_a_terminal_could_obey_is_escaped_and_reads_back() {
        let value = serde_json::json!({"a\u{202e}b": ["\u{1b}[2J", "\u{9b}31m", "\u{7f}", "ünï 👍"]});
        let text = line(&value);
        assert_eq!(text, "{\"a\\u202eb\":[\"\\u001b[2J\",\"\\u009b31m\",\"\\u007f\",\"ünï 👍\"]}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn indented_json_is_as_usual() {
        let mut bytes = Vec::new();
        write_pretty(&mut bytes, &serde_json::json!({"a": [1, {}], "b": null})).unwrap();
        let usual = serde_json::to_string_pretty(&serde_json::json!({"a": [1, {}], "b": null})).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), usual + "\n");
    }
}
