//! Listings: an order, a place in it, and a stable cursor from page to page.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::delivery::{Delivery, UnknownWord};
use super::filter::Filter;
use super::id::DeliveryId;
use super::time::Timestamp;

/// What a listing is ordered by; ties are broken by delivery id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SortBy {
    /// Time of creation.
    #[default]
    Created,
    /// Time of the last change.
    Updated,
    /// When it is due; lists unfinished deliveries only, as finished ones are never due.
    Due,
}

impl SortBy {
    /// The word on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            SortBy::Created => "created",
            SortBy::Updated => "updated",
            SortBy::Due => "due",
        }
    }

    /// The time that `delivery` is ordered by; `None` when this order leaves it out.
    pub fn time_of(self, delivery: &Delivery) -> Option<Timestamp> {
        match self {
            SortBy::Created => Some(delivery.created_at),
            SortBy::Updated => Some(delivery.updated_at),
            SortBy::Due => delivery.due_at,
        }
    }
}

impl FromStr for SortBy {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "created" => Ok(SortBy::Created),
            "updated" => Ok(SortBy::Updated),
            "due" => Ok(SortBy::Due),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "created, updated, due" }),
        }
    }
}

/// A place in a listing: the last delivery that was seen. It stays valid whatever is inserted or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The order that the place belongs to.
    pub sort: SortBy,
    /// Whether that order is newest first.
    pub descending: bool,
    /// The time that the last delivery was ordered by.
    pub time: Timestamp,
    /// The last delivery.
    pub id: DeliveryId,
}

/// A text that is no cursor, or one of another listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    /// Not a text that a listing printed.
    #[error("`{0}` is not a cursor that a listing printed")]
    Unreadable(String),
    /// Made by a listing with another order.
    #[error("the cursor belongs to a listing sorted by {}{}", .0.as_str(), if *.1 { " in reverse" } else { "" })]
    OtherOrder(SortBy, bool),
}

impl Cursor {
    /// The place of `delivery` in a listing; `None` when that order leaves it out.
    pub fn at(delivery: &Delivery, sort: SortBy, descending: bool) -> Option<Cursor> {
        let time = sort.time_of(delivery)?;
        Some(Cursor { sort, descending, time, id: delivery.id.clone() })
    }
}

impl fmt::Display for Cursor {
    /// One word that is safe in a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.descending { '-' } else { '+' };
        let plain = format!("{}{direction}:{}:{}", self.sort.as_str(), self.time.as_millis(), self.id);
        f.write_str(&URL_SAFE_NO_PAD.encode(plain))
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        decode_cursor(text).ok_or_else(|| InvalidCursor::Unreadable(text.to_owned()))
    }
}

fn decode_cursor(text: &str) -> Option<Cursor> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (order, rest) = plain.split_once(':')?;
    let (millis, id) = rest.split_once(':')?;
    let (sort, descending) = match order.split_at_checked(order.len().checked_sub(1)?)? {
        (sort, "+") => (sort, false),
        (sort, "-") => (sort, true),
        _ => return None,
    };
    let time = Timestamp::from_millis(millis.parse().ok()?);
    Some(Cursor { sort: sort.parse().ok()?, descending, time, id: DeliveryId::from(id) })
}

/// What to list, in which order, from where, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// The conditions.
    pub filter: Filter,
    /// The order.
    pub sort: SortBy,
    /// Latest first instead of earliest first.
    pub descending: bool,
    /// Starts behind this place.
    pub after: Option<Cursor>,
    /// At most this many; all when absent.
    pub limit: Option<u64>,
    /// Leaves out the history of failures but for the latest one: it can be most of a delivery.
    pub without_history: bool,
}

impl ListQuery {
    /// Checks that the cursor belongs to this order.
    ///
    /// # Errors
    /// [`InvalidCursor::OtherOrder`] when it does not.
    pub fn check_cursor(&self) -> Result<(), InvalidCursor> {
        match &self.after {
            Some(cursor) if (cursor.sort, cursor.descending) != (self.sort, self.descending) => {
                Err(InvalidCursor::OtherOrder(cursor.sort, cursor.descending))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_whatever_the_id_holds() {
        for (id, descending) in [("a:b:c", false), ("日本 \n'\"", true), ("", false)] {
            let time = Timestamp::from_millis(-5);
            let cursor = Cursor { sort: SortBy::Due, descending, time, id: DeliveryId::from(id) };
            let text = cursor.to_string();
            assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'), "{text}");
            assert_eq!(text.parse(), Ok(cursor));
        }
    }

    #[test]
    fn what_no_listing_printed_is_refused() {
        for text in ["", "x", "Y3JlYXRlZA", "####", "OjE6eA", "w6k6MTp4"] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cursor_of_another_order_is_refused() {
        let cursor =
            Cursor { sort: SortBy::Created, descending: false, time: Timestamp::EPOCH, id: "x".into() };
        let query = |sort, descending| ListQuery {
            sort,
            descending,
            after: Some(cursor.clone()),
            ..Default::default()
        };
        assert!(query(SortBy::Created, false).check_cursor().is_ok());
        assert!(query(SortBy::Created, true).check_cursor().is_err());
        assert!(query(SortBy::Updated, false).check_cursor().is_err());
    }
}
