//! Values as they are written on the command line.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::model::{Timestamp, parse_duration};

/// A point in time: an instant, or so long before the command was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeArg {
    /// An instant.
    At(Timestamp),
    /// So long ago.
    Ago(Duration),
}

impl TimeArg {
    /// Reads RFC 3339 with an offset, or a duration.
    ///
    /// # Errors
    /// Says what is understood, and that an offset is missing if that is it.
    pub fn parse(text: &str) -> Result<TimeArg, String> {
        if let Ok(duration) = parse_duration(text) {
            return Ok(TimeArg::Ago(duration));
        }
        if let Ok(instant) = text.parse() {
            return Ok(TimeArg::At(instant));
        }
        if format!("{text}Z").parse::<Timestamp>().is_ok() {
            return Err(format!("it has no offset; write {text}Z for UTC, or {text}+02:00"));
        }
        Err("write a time with an offset, such as 2026-03-01T09:30:00Z, or how long ago, such as 90s, 15m, 2h, \
             7d or 1w"
            .to_owned())
    }

    /// The instant that is meant by a command given at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            TimeArg::At(instant) => instant,
            TimeArg::Ago(duration) => now.saturating_sub(duration),
        }
    }
}

/// Reads a duration such as `90s`, `15m`, `2h`, `7d` or `1w`.
///
/// # Errors
/// Says what is understood.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Reads an address to listen on: `127.0.0.1:9187`, `[::1]:9187`, or `:9187` for all addresses of this host, of both
/// families.
///
/// # Errors
/// Says what is understood.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let all = text.strip_prefix(':').and_then(|port| port.parse().ok());
    let all = all.map(|port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    all.or_else(|| text.parse().ok()).ok_or_else(|| {
        "write IP:PORT, such as 127.0.0.1:9187 or [::1]:9187, or :9187 for all addresses".to_owned()
    })
}

/// Reads an id, key, type or handler: any text of 1 to 512 bytes.
///
/// # Errors
/// Says which limit is broken.
pub fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("it must not be empty".to_owned()),
        1..=crate::model::MAX_NAME_BYTES => Ok(text.to_owned()),
        length => Err(format!(
            "it is {length} bytes long, and at most {} are allowed",
            crate::model::MAX_NAME_BYTES
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_instant_or_so_long_ago() {
        let now = Timestamp::from_millis(100_000);
        let read = |text: &str| TimeArg::parse(text).map(|time| time.resolve(now).as_millis());
        assert_eq!(read("90s"), Ok(10_000));
        assert_eq!(read("1970-01-01T00:00:05Z"), Ok(5_000));
        assert_eq!(read("1970-01-01T01:00:05+01:00"), Ok(5_000));
    }

    #[test]
    fn a_time_without_an_offset_is_refused_and_says_so() {
        let error = TimeArg::parse("2026-03-01T09:30:00").unwrap_err();
        assert!(error.contains("no offset") && error.contains("2026-03-01T09:30:00Z"), "{error}");
        assert!(TimeArg::parse("yesterday").unwrap_err().contains("90s"));
        assert!(TimeArg::parse("5").is_err());
    }

    #[test]
    fn names_have_limits_and_no_other_rules() {
        assert!(name("{\"$ne\": null}").is_ok());
        assert!(name("").is_err());
        assert!(name(&"x".repeat(513)).is_err());
    }
    #[test]
    fn an_address_is_an_ip_and_a_port_or_a_port_alone() {
        let read = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(read("127.0.0.1:9187").as_deref(), Ok("127.0.0.1:9187"));
        assert_eq!(read("[::1]:0").as_deref(), Ok("[::1]:0"));
        assert_eq!(read(":9187").as_deref(), Ok("[::]:9187"));
        for text in
            ["", "9187", ":", ":70000", "127.0.0.1", "localhost:9187", "::1:9187", "http://127.0.0.1:9187"]
        {
            assert!(read(text).unwrap_err().contains("127.0.0.1:9187"), "{text}");
        }
    }
}
