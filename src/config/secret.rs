//! Secrets, and texts that may hold one.

use std::fmt;

/// What a masked part is replaced by.
const MASK: &str = "***";

/// What stands for a password in our own texts, which show how a URL is written.
const PLACEHOLDER: &str = "PASSWORD";

/// Words in the name of a URL's option whose value is a secret.
const SECRET_OPTIONS: [&str; 4] = ["password", "token", "secret", "authmechanismproperties"];

/// A text that may hold a password, such as a store's URL. It shows itself masked; [`Secret::expose`] is the one
/// way to the plain text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The plain text, to hand to whoever connects and to nobody else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_url(&self.0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

/// `text` with the passwords of all URLs in it masked. A URL reaches up to white space.
pub fn redact(text: &str) -> String {
    text.split_inclusive(char::is_whitespace).map(redact_word).collect()
}

fn redact_word(word: &str) -> String {
    let end = word.trim_end_matches(char::is_whitespace).len();
    let (url, space) = word.split_at(end);
    if url.contains("://") { mask_url(url) + space } else { word.to_owned() }
}

/// Everything between `://` and the last `@` is taken for user and password, even if it holds characters that
/// should have been escaped: a malformed URL must not leak what a sound one hides.
fn mask_url(url: &str) -> String {
    let (scheme, rest) = match url.find("://") {
        Some(at) => url.split_at(at + "://".len()),
        None => ("", url),
    };
    let (user, rest) = match rest.rfind('@') {
        Some(at) => (mask_user(&rest[..at]), &rest[at..]),
        None => (String::new(), rest),
    };
    format!("{scheme}{user}{}", mask_options(rest))
}

fn mask_user(userinfo: &str) -> String {
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._%+-".contains(c));
    match userinfo.split_once(':') {
        Some((_, PLACEHOLDER)) => userinfo.to_owned(),
        Some((name, _)) if is_plain(name) => format!("{name}:{MASK}"),
        None if is_plain(userinfo) => userinfo.to_owned(),
        _ => MASK.to_owned(),
    }
}

fn mask_options(rest: &str) -> String {
    let Some((place, options)) = rest.split_once('?') else { return rest.to_owned() };
    let masked: Vec<String> = options.split('&').map(mask_option).collect();
    format!("{place}?{}", masked.join("&"))
}

fn mask_option(option: &str) -> String {
    match option.split_once('=') {
        Some((name, _)) if SECRET_OPTIONS.iter().any(|word| name.to_ascii_lowercase().contains(word)) => {
            format!("{name}={MASK}")
        }
        _ => option.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_options_of_a_url_are_masked() {
        let shown = |url: &str| Secret::new(url).to_string();
        assert_eq!(shown("mongodb://u:hunter2@h:1/db?w=1"), "mongodb://u:***@h:1/db?w=1");
        assert_eq!(shown("mongodb://h1,h2/db"), "mongodb://h1,h2/db");
        assert_eq!(
            shown("mongodb://h/?tlsCertificateKeyFilePassword=hunter2&tls=true"),
            "mongodb://h/?tlsCertificateKeyFilePassword=***&tls=true"
        );
        assert_eq!(
            shown("mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:hunter2"),
            "mongodb://h/?authMechanismProperties=***"
        );
    }

    #[test]
    fn a_malformed_url_leaks_nothing() {
        for url in [
            "mongodb://u:hunt@er2@h/db",
            "mongodb://u:hunter2/x?y@h/db",
            "mongodb://u hunter2:hunter2@h",
            "u:hunter2@h",
            "mongodb://u:pa hunter2@h",
            "mongodb://hunter2#:x@h",
        ] {
            let secret = Secret::new(url);
            assert!(!secret.to_string().contains("hunt"), "{secret}");
            assert!(!format!("{secret:?}").contains("er2"), "{secret:?}");
        }
    }

    #[test]
    fn a_text_keeps_all_but_the_passwords() {
        assert_eq!(
            redact("unexpected argument 'mongodb://u:hunter2@h/db' found\n\nsee a@b"),
            "unexpected argument 'mongodb://u:***@h/db' found\n\nsee a@b"
        );
        assert_eq!(redact("write mongodb://USER:PASSWORD@HOST"), "write mongodb://USER:PASSWORD@HOST");
    }
}
