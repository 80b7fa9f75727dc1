//! What the outbox is made of: events, deliveries, their legal transitions, retry policies, filters and
//! pages. Everything here is pure: no I/O, no wall time, no database.

mod activity;
mod control;
mod delivery;
mod duration;
mod envelope;
mod error_group;
mod error_text;
mod event;
mod event_line;
mod export_line;
mod filter;
mod id;
pub mod json;
mod key;
mod page;
mod rate;
mod retry;
mod statistics;
mod text;
mod time;
mod transition;

pub use activity::HandlerActivity;
pub use control::{Controls, Pause, TrippedBreaker};
pub use delivery::{
    AttemptError, CRASH_MESSAGE, Delivery, Failure, FailureKind, Lane, Lease, MAX_ERROR_HISTORY,
    MAX_ERROR_MESSAGE_BYTES, Status, UNKNOWN_WORKER, UnknownWord,
};
pub use duration::{InvalidDuration, parse_duration, short_duration};
pub use envelope::{Address, Envelope};
pub use error_group::{ErrorGroupId, InvalidErrorGroupId};
pub use error_text::{MAX_NORMALISED_BYTES, normalise_error};
pub use event::{Appended, AppendedDelivery, Event, MAX_EVENT_BYTES, MAX_NAME_BYTES, NewEvent};
pub(crate) use event_line::ROOT as EVENT_LINE_ROOT;
pub use event_line::{EventLine, HandlersOf, parse_event_line, read_event, with_handlers};
pub use export_line::{EXPORT_VERSION, ExportLine, Types, check_importable, parse_export_line};
pub use filter::{Filter, InvalidPattern, Selection, TypePattern};
pub use id::{DeliveryId, EventId, IdKind, IdSource, LeaseToken, UuidV7};
pub use key::{Blocker, KeyPlace, KeySequence, KeyState};
pub use page::{Cursor, InvalidCursor, ListQuery, SortBy};
pub use rate::{InvalidRate, Rate};
pub use retry::RetryPolicy;
pub use statistics::{HandlerStatistics, QueueDepth, Statistics};
pub use text::InvalidInput;
pub use time::{InvalidTimestamp, Timestamp};
pub use transition::{IllegalTransition, Transition, apply};
