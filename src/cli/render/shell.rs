//! Commands to copy into a shell.

use std::fmt::Write as _;

use super::text::is_harmful;

/// The words as one line that a POSIX shell reads as these words.
pub fn line<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(quote).collect();
    quoted.join(" ")
}

/// What a terminal could obey is written as escapes, which bash, zsh and ksh read between `$'` and `'`.
fn quote(word: &str) -> String {
    if !word.contains(is_harmful) {
        return shell_words::quote(word).into_owned();
    }
    let mut quoted = String::from("$'");
    for character in word.chars() {
        match character {
            '\'' | '\\' => quoted.extend(['\\', character]),
            _ if is_harmful(character) => {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_word_stays_plain_and_others_are_quoted() {
        assert_eq!(line(["relayctl", "requeue", "019372e4-8f2c"]), "relayctl requeue 019372e4-8f2c");
        assert_eq!(line(["--key", "a b", "", "$(x)", "it's"]), r"--key 'a b' '' '$(x)' 'it'\''s'");
    }

    #[test]
    fn what_a_terminal_could_obey_is_escaped() {
        assert_eq!(line(["a\u{1b}[2J"]), r"$'a\033[2J'");
        assert_eq!(line(["'\\\n\u{202e}é"]), r"$'\'\\\012\342\200\256é'");
    }

    /// What the shell makes of a line are the words again.
    #[test]
    fn a_shell_reads_the_words_back() {
        let words = [
            "plain",
            "",
            "a b",
            "it's",
            "$HOME `x` \"y\" \\",
            "a\u{1b}[0m1\n2\u{7f}",
            "\u{202e}ab",
            "日本",
            "*?[~",
        ];
        let script = format!("printf '%s\\0' {}", line(words));
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.trim_end_matches('\0').split('\0').collect::<Vec<_>>(), words);
    }
}
