//! Publish: one event, or a stream of JSON lines in transactions of a bounded size.

use std::fmt;
use std::io;
use std::ops::ControlFlow;

use tokio::io::AsyncBufRead;

use crate::model::{Appended, HandlersOf, InvalidInput, NewEvent, parse_event_line};
use crate::store::{Store, StoreError};

use super::control::Control;
use super::lines::{LineError, Lines};

/// The text of one batch, in bytes, after which it is written although it could hold more lines: what keeps memory
/// and transactions small when events are large.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// How a stream is published.
#[derive(Clone, Copy)]
pub struct PublishPlan<'a> {
    /// At most this many lines in one transaction; at least 1.
    pub batch_size: usize,
    /// Who receives the events of lines that name no handlers.
    pub handlers_of: &'a HandlersOf<'a>,
}

/// How far a stream was published.
#[derive(Debug, Default)]
pub struct PublishReport {
    /// Lines whose events are in the store now: `created + existing`.
    pub lines: u64,
    /// New events.
    pub created: u64,
    /// Events whose id was there before.
    pub existing: u64,
    /// New deliveries.
    pub deliveries: u64,
    /// Why it ended before the end of the stream; absent when it did not.
    pub stopped: Option<Stopped>,
    /// The first line that is not in the store; behind the last line when none is missing.
    pub next_line: u64,
}

/// Why a stream was not published to its end. Unless said otherwise nothing of the batch at hand was written.
#[derive(Debug)]
pub enum Stopped {
    /// It was stopped from outside.
    Interrupted,
    /// A line is no event, or one that breaks a limit.
    BadLine {
        /// Its number.
        line: u64,
        /// The member or JSON path that is refused, and why.
        error: InvalidInput,
    },
    /// The stream could not be read on.
    Unreadable {
        /// The number of the line that was tried.
        line: u64,
        /// What the system said.
        error: io::Error,
    },
    /// The store refused a batch, or did not answer.
    Refused {
        /// The first line of the batch.
        first: u64,
        /// The last line of the batch.
        last: u64,
        /// What it said.
        error: StoreError,
    },
    /// The sink wanted no more. The last batch that it was told is written.
    Declined,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Interrupted => f.write_str("interrupted"),
            Stopped::BadLine { line, error } => write!(f, "line {line}: {error}"),
            Stopped::Unreadable { line, error } => write!(f, "line {line} cannot be read: {error}"),
            Stopped::Refused { first, last, error } if first == last => write!(f, "line {first}: {error}"),
            Stopped::Refused { first, last, error } => write!(f, "lines {first} to {last}: {error}"),
            Stopped::Declined => f.write_str("stopped"),
        }
    }
}

impl PublishPlan<'_> {
    /// Appends the events of `reader`, one JSON object a line, in transactions of at most `batch_size` lines.
    ///
    /// A line that is refused stops the stream: nothing of its batch is written, and the batches before it stay. Running
    /// a stream again is idempotent for those lines alone that carry an id.
    ///
    /// `sink` is told what each committed batch did, in the order of its lines, and says whether to go on.
    pub async fn publish_lines(
        &self,
        store: &dyn Store,
        reader: impl AsyncBufRead + Unpin,
        sink: &mut impl FnMut(&[Appended]) -> ControlFlow<()>,
        control: &Control<'_>,
    ) -> PublishReport {
        let mut lines = Lines::new(reader);
        let mut report = PublishReport { next_line: 1, ..PublishReport::default() };
        report.stopped = self.publish_batches(store, &mut lines, sink, control, &mut report).await.err();
        report
    }

    async fn publish_batches(
        &self,
        store: &dyn Store,
        lines: &mut Lines<impl AsyncBufRead + Unpin>,
        sink: &mut impl FnMut(&[Appended]) -> ControlFlow<()>,
        control: &Control<'_>,
        report: &mut PublishReport,
    ) -> Result<(), Stopped> {
        loop {
            let batch =
                control.unless_cancelled(self.read_batch(lines)).await.ok_or(Stopped::Interrupted)??;
            if !batch.events.is_empty() {
                let appended = store.append(&batch.events, control.now()).await;
                let appended = appended.map_err(|error| batch.refused(error))?;
                report.add(&appended);
                report.next_line = batch.next_line;
                if sink(&appended).is_break() {
                    return Err(Stopped::Declined);
                }
                (control.progress)(report.lines);
            }
            report.next_line = batch.next_line;
            if batch.is_last {
                return Ok(());
            }
        }
    }

    async fn read_batch(&self, lines: &mut Lines<impl AsyncBufRead + Unpin>) -> Result<Batch, Stopped> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.events.len() < self.batch_size.max(1) && bytes < MAX_BATCH_BYTES {
            let line = lines.next().await;
            let number = lines.number();
            let line = line.map_err(|error| match error {
                LineError::Invalid(error) => Stopped::BadLine { line: number, error },
                LineError::Io(error) => Stopped::Unreadable { line: number, error },
            })?;
            let Some(line) = line else {
                batch.is_last = true;
                batch.next_line = number;
                return Ok(batch);
            };
            bytes += line.len();
            let event = self.read_event(&line).map_err(|error| Stopped::BadLine { line: number, error })?;
            batch.events.push(event);
            batch.lines.push(number);
            batch.next_line = number + 1;
        }
        Ok(batch)
    }

    fn read_event(&self, line: &str) -> Result<NewEvent, InvalidInput> {
        parse_event_line(line)?.resolve(self.handlers_of)
    }
}

/// The events of some lines.
#[derive(Default)]
struct Batch {
    events: Vec<NewEvent>,
    /// The numbers of their lines.
    lines: Vec<u64>,
    next_line: u64,
    is_last: bool,
}

impl Batch {
    fn refused(&self, error: StoreError) -> Stopped {
        let first = self.lines.first().copied().unwrap_or(self.next_line);
        Stopped::Refused { first, last: self.lines.last().copied().unwrap_or(first), error }
    }
}

impl PublishReport {
    fn add(&mut self, appended: &[Appended]) {
        let created = appended.iter().filter(|event| event.created).count() as u64;
        let deliveries = appended.iter().flat_map(|event| &event.deliveries);
        self.lines += appended.len() as u64;
        self.created += created;
        self.existing += appended.len() as u64 - created;
        self.deliveries += deliveries.filter(|delivery| delivery.created).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::sync::{Arc, Mutex};

    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::model::Status;
    use crate::ops::testing::{Bench, Call, Spoilt, go_on, gone};

    fn to_h(_: &str) -> Vec<String> {
        vec!["h".to_owned()]
    }

    fn plan(batch_size: usize) -> PublishPlan<'static> {
        PublishPlan { batch_size, handlers_of: &to_h }
    }

    fn lines(numbers: std::ops::RangeInclusive<u64>) -> String {
        numbers.fold(String::new(), |mut text, n| {
            writeln!(text, r#"{{"id":"e{n}","type":"t","payload":{n}}}"#).unwrap();
            text
        })
    }

    async fn publish(bench: &Bench, store: &dyn Store, batch_size: usize, text: &str) -> PublishReport {
        plan(batch_size)
            .publish_lines(store, text.as_bytes(), &mut |_| ControlFlow::Continue(()), &bench.control())
            .await
    }

    #[tokio::test]
    async fn a_stream_is_appended_in_batches() {
        let bench = Bench::new();
        let batches = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&batches);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let mut told = Vec::new();
        let mut sink = |appended: &[Appended]| {
            told.extend(appended.iter().map(|event| event.id.to_string()));
            ControlFlow::Continue(())
        };
        let text = lines(1..=25);
        let report = plan(10).publish_lines(&store, text.as_bytes(), &mut sink, &bench.control()).await;
        assert!(report.stopped.is_none());
        assert_eq!((report.lines, report.created, report.deliveries, report.next_line), (25, 25, 25, 26));
        assert_eq!(*batches.lock().unwrap(), [10, 10, 5].map(Call::Append));
        assert_eq!(told, (1..=25).map(|n| format!("e{n}")).collect::<Vec<_>>());
        assert_eq!(bench.count(Status::Pending).await, 25);
    }

    #[tokio::test]
    async fn running_it_again_changes_nothing_where_lines_have_ids() {
        let bench = Bench::new();
        publish(&bench, &bench.store, 10, &lines(1..=25)).await;
        let report = publish(&bench, &bench.store, 10, &lines(1..=26)).await;
        assert_eq!((report.lines, report.created, report.existing), (26, 1, 25));
        assert_eq!(bench.count(Status::Pending).await, 26);
    }

    #[tokio::test]
    async fn a_bad_line_keeps_its_batch_out_and_the_earlier_ones_in() {
        let bench = Bench::new();
        let text = format!("{}{{\"type\":\"t\"}}\n{}", lines(1..=16), lines(18..=30));
        let report = publish(&bench, &bench.store, 5, &text).await;
        assert_eq!(report.stopped.unwrap().to_string(), "line 17: payload: is missing");
        assert_eq!((report.lines, report.next_line), (15, 16));
        assert_eq!(bench.count(Status::Pending).await, 15);
    }

    #[tokio::test]
    async fn a_batch_that_the_store_refuses_is_named_by_its_lines() {
        let bench = Bench::new();
        publish(&bench, &bench.store, 5, "{\"id\":\"e7\",\"type\":\"other\",\"payload\":7}").await;
        let report = publish(&bench, &bench.store, 5, &lines(1..=20)).await;
        let stopped = report.stopped.unwrap();
        assert!(matches!(&stopped, Stopped::Refused { first: 6, last: 10, .. }), "{stopped}");
        assert_eq!((report.lines, report.next_line), (5, 6));
        let store = Spoilt::new(&bench.store, |_| gone());
        let report = publish(&bench, &store, 1, &lines(1..=20)).await;
        assert_eq!(report.stopped.unwrap().to_string(), "line 1: the server has gone away");
        assert_eq!(report.lines, 0);
    }

    #[tokio::test]
    async fn limits_of_the_model_stop_at_their_line() {
        let bench = Bench::new();
        let text = format!("{}{{\"type\":\"t\",\"payload\":1,\"key\":\"\"}}\n", lines(1..=2));
        let report = publish(&bench, &bench.store, 1, &text).await;
        assert_eq!(report.stopped.unwrap().to_string(), "line 3: key: must not be empty");
        assert_eq!(report.lines, 2);
    }

    #[tokio::test]
    async fn handlers_come_from_the_line_or_else_from_the_subscriptions() {
        let bench = Bench::new();
        let subscribers = |event_type: &str| match event_type {
            "known" => vec!["s1".to_owned(), "s2".to_owned()],
            _ => Vec::new(),
        };
        let plan = PublishPlan { batch_size: 1, handlers_of: &subscribers };
        let text = "{\"type\":\"known\",\"payload\":1}\n\
            {\"type\":\"unknown\",\"payload\":1,\"handlers\":[\"own\"]}\n\
            {\"type\":\"unknown\",\"payload\":1}";
        let report = plan
            .publish_lines(
                &bench.store,
                text.as_bytes(),
                &mut |_| ControlFlow::Continue(()),
                &bench.control(),
            )
            .await;
        assert_eq!(
            report.stopped.unwrap().to_string(),
            "line 3: handlers: none is named, and none is known to subscribe to `unknown`"
        );
        let mut handlers: Vec<_> = bench.all().await.into_iter().map(|delivery| delivery.handler).collect();
        handlers.sort();
        assert_eq!(handlers, ["own", "s1", "s2"]);
    }

    #[tokio::test]
    async fn an_explicit_empty_list_of_handlers_is_refused() {
        let bench = Bench::new();
        let report = publish(&bench, &bench.store, 1, r#"{"type":"t","payload":1,"handlers":[]}"#).await;
        assert!(report.stopped.unwrap().to_string().starts_with("line 1: handlers: must name at least one"));
    }

    #[tokio::test]
    async fn a_cancel_ends_the_wait_for_more_lines() {
        let bench = Bench::new();
        let (mut writer, reader) = tokio::io::duplex(1 << 16);
        writer.write_all(lines(1..=7).as_bytes()).await.unwrap();
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let reader = tokio::io::BufReader::new(reader);
        let report =
            plan(5).publish_lines(&store, reader, &mut |_| ControlFlow::Continue(()), &bench.control()).await;
        assert!(matches!(report.stopped, Some(Stopped::Interrupted)));
        assert_eq!((report.lines, report.next_line), (5, 6));
        assert_eq!(bench.count(Status::Pending).await, 5);
    }

    #[tokio::test]
    async fn the_sink_can_stop_it_behind_a_batch() {
        let bench = Bench::new();
        let text = lines(1..=25);
        let mut sink = |_: &[Appended]| ControlFlow::Break(());
        let report = plan(10).publish_lines(&bench.store, text.as_bytes(), &mut sink, &bench.control()).await;
        assert!(matches!(report.stopped, Some(Stopped::Declined)));
        assert_eq!((report.lines, report.next_line, bench.count(Status::Pending).await), (10, 11, 10));
    }

    #[tokio::test]
    async fn large_lines_make_small_batches() {
        let bench = Bench::new();
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let line = format!("{{\"type\":\"t\",\"payload\":\"{}\"}}\n", "x".repeat(6 << 20));
        publish(&bench, &store, 100, &line.repeat(4)).await;
        assert_eq!(*sizes.lock().unwrap(), [Call::Append(3), Call::Append(1)]);
    }
}
