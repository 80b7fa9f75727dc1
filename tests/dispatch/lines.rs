//! Children that answer in lines: the protocol, restarts, deaths in flight, stops, batches.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use relayctl::dispatch::{DispatchEvent, StopWhen, Verdict};
use relayctl::handler::lines::{ChildNews, ChildNote};
use relayctl::handler::{
    AttemptControl, BatchHandler, BatchLimits, Closing, Command, ExitCodes, Handler, LinesHandler, Meaning,
    Outcome, StopReason, Wait,
};
use relayctl::model::{Envelope, Failure, FailureKind, NewEvent, Status};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Bench, Marker, START, control, envelope, failure_of, options, soon, subscription, until,
};

/// Reads a line into `line`, its delivery into `id`, and its payload's `text` into `text`.
const READ: &str = r#"next() {
    IFS= read -r line || return 1
    id=${line##*\"deliveryId\":\"}; id=${id%%\"*}
    text=${line#*\"text\":\"}; text=${text%%\"*}
}
ok() { printf '{"id":"%s","ok":true}\n' "$id"; }
"#;

/// Answers everything.
const LOOP: &str = "while next; do ok; done";

fn shell(line: &str) -> Command {
    Command::shell(format!("{READ}{line}"))
}

fn lines(line: &str) -> LinesHandler {
    LinesHandler::new(shell(line))
}

fn delivery(id: &str, text: &str) -> Envelope {
    Envelope { delivery_id: id.into(), ..envelope(json!({ "text": text })) }
}

async fn ask(handler: &impl Handler, id: &str, text: &str) -> Outcome {
    soon(handler.handle(&delivery(id, text), &control().context())).await
}

fn closing() -> Closing {
    Closing { hurry: CancellationToken::new(), kill_after: Duration::from_millis(300) }
}

fn written(directory: &TempDir, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(directory.path().join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn has(directory: &Path, file: &str) -> bool {
    directory.join(file).exists()
}

// ---- the protocol --------------------------------------------------------------------------------------------------

#[tokio::test]
async fn one_child_has_one_delivery_after_the_other() {
    let directory = tempdir().unwrap();
    let command =
        shell("echo $$ >>pids; while next; do echo \"$text\" >>seen; ok; done").workdir(directory.path());
    let handler = LinesHandler::new(command);
    for i in 0..20 {
        assert_eq!(ask(&handler, &format!("d-{i}"), &format!("t-{i}")).await, Outcome::Succeeded);
    }
    let expected: Vec<_> = (0..20).map(|i| format!("t-{i}")).collect();
    assert_eq!(written(&directory, "seen"), expected);
    assert_eq!(written(&directory, "pids").len(), 1);
}

#[tokio::test]
async fn the_envelope_is_one_line_and_the_environment_names_the_handler() {
    let directory = tempdir().unwrap();
    let line = "next; printf '%s\\n' \"$line\" >envelope; printf %s \"$RELAY_HANDLER\" >handler; env >environ; ok; cat";
    let handler = LinesHandler::new(shell(line).workdir(directory.path()));
    let envelope = delivery("d-1", "a\nb $oid");
    assert_eq!(soon(handler.handle(&envelope, &control().context())).await, Outcome::Succeeded);
    let seen: Value = serde_json::from_str(&written(&directory, "envelope").concat()).unwrap();
    assert_eq!(seen, serde_json::to_value(&envelope).unwrap());
    assert_eq!(written(&directory, "handler"), ["h"]);
    assert!(!written(&directory, "environ").iter().any(|variable| variable.starts_with("RELAY_DELIVERY")));
}

#[tokio::test]
async fn an_answer_decides_what_becomes_of_the_delivery() {
    let handler = lines(
        r#"while next; do case $text in
            fail) printf '{"id":"%s","error":"try later"}\n' "$id";;
            dead) printf '{"error":"bad order","dead":true,"id":"%s"}\n' "$id";;
            later) printf '{"id":"%s","error":"busy","retry_after":"30s"}\n' "$id";;
            sleepy) printf '{"id":"%s","snooze":"10m"}\n' "$id";;
            *) ok;;
        esac; done"#,
    );
    assert_eq!(ask(&handler, "d-1", "fail").await, Outcome::failed("try later"));
    assert_eq!(ask(&handler, "d-2", "dead").await, Outcome::rejected("bad order"));
    assert_eq!(ask(&handler, "d-3", "fine").await, Outcome::Succeeded);
    let failure = Failure::new(FailureKind::Failed, "busy");
    let later = Outcome::RetryAfter { failure, wait: Wait::For(Duration::from_secs(30)) };
    assert_eq!(ask(&handler, "d-4", "later").await, later);
    let snoozed = Outcome::Snoozed(Wait::For(Duration::from_secs(600)));
    assert_eq!(ask(&handler, "d-5", "sleepy").await, snoozed);
}

#[tokio::test]
async fn large_lines_and_slow_readers_and_answers_in_pieces() {
    let handler = lines(
        "while next; do sleep 0.05; printf '{\"id\":'; sleep 0.02; printf '\"%s\",\"ok\":true}\\n' \"$id\"; done",
    );
    for bytes in [65_000, 65_536, 200_000] {
        assert_eq!(ask(&handler, "d", &"x".repeat(bytes)).await, Outcome::Succeeded, "{bytes}");
    }
    // Both pipes are full at once: an answer of nearly a mebibyte, begun before the line was read.
    let talkative = LinesHandler::new(Command::shell(
        r#"printf '{"id":"d","error":"'; head -c 900000 /dev/zero | tr '\0' x; printf '"}\n'; cat >/dev/null"#,
    ));
    let (_, message) = failure_of(ask(&talkative, "d", &"x".repeat(500_000)).await);
    assert!(message.starts_with("xxx"), "{}", &message[..20]);
}

#[tokio::test]
async fn many_at_once_have_a_child_each() {
    let directory = tempdir().unwrap();
    let line = "echo $$ >>pids; while next; do echo x >>begun; while [ $(wc -l <begun) -lt 4 ]; do sleep 0.01; done; ok; done";
    let handler = LinesHandler::new(shell(line).workdir(directory.path()));
    for _ in 0..2 {
        let ids = ["a", "b", "c", "d"];
        let outcomes = join_all(ids.map(|id| ask(&handler, id, ""))).await;
        assert_eq!(outcomes, [(); 4].map(|()| Outcome::Succeeded));
    }
    assert_eq!(written(&directory, "pids").len(), 4);
}

// ---- children that come to grief -----------------------------------------------------------------------------------

#[tokio::test]
async fn a_death_in_flight_fails_the_delivery_and_the_next_has_a_new_child() {
    let handler = lines("while next; do [ $text = die ] && { echo oh no >&2; exit 3; }; ok; done");
    assert_eq!(ask(&handler, "d-1", "fine").await, Outcome::Succeeded);
    assert_eq!(ask(&handler, "d-2", "die").await, Outcome::failed("exit status 3: oh no"));
    assert_eq!(ask(&handler, "d-3", "fine").await, Outcome::Succeeded);
    let killed = lines("next; kill -KILL $$");
    assert_eq!(ask(&killed, "d", "").await, Outcome::failed("killed by SIGKILL"));
    let polite = lines("next; exit 0");
    assert_eq!(ask(&polite, "d", "").await, Outcome::failed("ended without an answer: exit status 0"));
    let opinionated = lines("next; exit 65");
    assert_eq!(ask(&opinionated, "d", "").await, Outcome::failed("exit status 65"));
}

#[tokio::test]
async fn last_words_without_an_end_of_line_count() {
    let handler = lines(r#"next; printf '{"id":"%s","ok":true}' "$id"; exit 3"#);
    assert_eq!(ask(&handler, "d", "").await, Outcome::Succeeded);
    let cut = lines(r#"next; printf '{"id":"%s","o' "$id"; exit 3"#);
    let (kind, message) = failure_of(ask(&cut, "d", "").await);
    assert_eq!(kind, FailureKind::Failed);
    assert!(message.contains(r#"{"id":"d","o"#), "{message}");
}

#[tokio::test]
async fn what_is_no_answer_fails_the_delivery_and_ends_the_child() {
    let cases = [
        ("echo hello", "the answer makes no sense (expected value at line 1 column 1): hello"),
        ("echo", "the answer makes no sense (EOF while parsing a value at line 1 column 0): "),
        ("id=x ok; id=x; ok", r#"answered a delivery that it does not have: {"id":"x","ok":true}"#),
        (
            r#"printf '[{"id":"d"}]\n'"#,
            r#"the answer makes no sense (neither `ok` nor `error` nor `snooze`): [{"id":"d"}]"#,
        ),
        ("exec >&-; sleep 300", "closed its stdout"),
    ];
    for (line, expected) in cases {
        let marker = Marker::new("no-answer");
        let handler = LinesHandler::new(marker.mark(shell(&format!("next; {line}; sleep 300"))));
        assert_eq!(ask(&handler, "d", "").await, Outcome::failed(expected), "{line}");
        assert_eq!(marker.processes(), [0; 0], "{line}");
    }
}

#[tokio::test]
async fn a_line_without_end_is_not_kept() {
    let marker = Marker::new("endless-line");
    let handler = LinesHandler::new(marker.mark(shell("next; echo so much >&2; tr '\\0' y </dev/zero")));
    let (_, message) = failure_of(ask(&handler, "d", "").await);
    assert!(message.starts_with("wrote a line of more than 1024 KiB: yyyy"), "{message}");
    assert!(message.ends_with("…: so much") && message.len() < 300, "{message}");
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_command_that_cannot_start_is_named() {
    let handler = LinesHandler::new(Command::argv("no-such-program", ["secret"]));
    let message = "cannot start `no-such-program`: No such file or directory (os error 2)";
    assert_eq!(ask(&handler, "d", "").await, Outcome::failed(message));
}

#[tokio::test]
async fn restarts_back_off_until_a_child_answers() {
    let directory = tempdir().unwrap();
    let handler = LinesHandler::new(shell("next; [ -e well ] || exit 1; ok; cat").workdir(directory.path()));
    let started = Instant::now();
    for _ in 0..4 {
        assert_eq!(ask(&handler, "d", "").await, Outcome::failed("exit status 1"));
    }
    // 100, 200 and 400 ms.
    assert!(started.elapsed() >= Duration::from_millis(700), "{:?}", started.elapsed());
    std::fs::write(directory.path().join("well"), "").unwrap();
    assert_eq!(ask(&handler, "d", "").await, Outcome::Succeeded);
    assert!(started.elapsed() >= Duration::from_millis(1_500));
}

#[tokio::test]
async fn a_delivery_that_is_to_stop_while_no_child_may_start_is_given_back() {
    let handler = lines("exit 1");
    for _ in 0..5 {
        assert_eq!(ask(&handler, "d", "").await, Outcome::failed("exit status 1"));
    }
    let control = control();
    let (delivery, context) = (delivery("d", ""), control.context());
    let waiting = handler.handle(&delivery, &context);
    control.stop(StopReason::TimedOut(Duration::from_secs(1)), Instant::now());
    assert_eq!(soon(waiting).await, Outcome::Released);
    let draining = CancellationToken::new();
    let drained = AttemptControl::new(START, draining.clone()).context();
    let (outcome, ()) = tokio::join!(soon(handler.handle(&delivery, &drained)), async { draining.cancel() });
    assert_eq!(outcome, Outcome::Released);
}

// ---- idle children -------------------------------------------------------------------------------------------------

/// The notes of a handler, as they come.
fn listened_to(handler: LinesHandler) -> (LinesHandler, mpsc::Receiver<ChildNote>) {
    let (sender, notes) = mpsc::channel(100);
    (handler.notes(sender), notes)
}

#[tokio::test]
async fn a_child_that_dies_while_idle_is_replaced_and_told_of() {
    let directory = tempdir().unwrap();
    let command = shell("echo $$ >pid; next; ok; echo tired >&2; exit 4").workdir(directory.path());
    let (handler, mut notes) = listened_to(LinesHandler::new(command));
    let mut told = Vec::new();
    for i in 0..3 {
        assert_eq!(ask(&handler, &format!("d-{i}"), "").await, Outcome::Succeeded);
        // It is reaped without anybody asking for it.
        let pid = written(&directory, "pid").concat();
        until(async || !has(Path::new("/proc"), &pid)).await;
        loop {
            let note = soon(notes.recv()).await.unwrap();
            if note.what == ChildNews::Said("tired".into()) {
                break;
            }
            told.push((note.handler, note.what));
        }
    }
    let replaced = || ("h".to_owned(), ChildNews::Replaced("exit status 4: tired".into()));
    assert_eq!(told, [replaced(), replaced()]);
}

#[tokio::test]
async fn a_child_that_writes_unasked_is_replaced_and_told_of() {
    let marker = Marker::new("unasked");
    let directory = tempdir().unwrap();
    let line = "next; ok; echo one more thing; echo >told; sleep 300";
    let (handler, mut notes) =
        listened_to(LinesHandler::new(marker.mark(shell(line).workdir(directory.path()))));
    assert_eq!(ask(&handler, "d-1", "").await, Outcome::Succeeded);
    until(async || has(directory.path(), "told")).await;
    assert_eq!(ask(&handler, "d-2", "").await, Outcome::Succeeded);
    let what = ChildNews::Replaced("wrote without being asked: one more thing".into());
    assert_eq!(soon(notes.recv()).await.unwrap().what, what);
    drop(handler);
    until(async || marker.processes().is_empty()).await;
}

#[tokio::test]
async fn an_answer_that_comes_twice_does_not_undo_the_first() {
    let handler = lines("while next; do ok; ok; done");
    assert_eq!(ask(&handler, "d-1", "").await, Outcome::Succeeded);
    let line = "while next; do if [ $text = reads-on ]; then ok; else printf '{\"id\":\"%s\",\"ok\":true}\\n' \"$id\"; exec cat >/dev/null; fi; done";
    assert_eq!(ask(&lines(line), "d-1", "").await, Outcome::Succeeded);
}

#[tokio::test]
async fn stderr_is_told_line_by_line_and_in_bounds() {
    let line = "next; echo one >&2; printf two >&2; sleep 0.05; echo ' three' >&2; head -c 5000 /dev/zero | tr '\\0' z >&2; echo >&2; ok; cat";
    let (handler, mut notes) = listened_to(lines(line));
    assert_eq!(ask(&handler, "d", "").await, Outcome::Succeeded);
    let mut said = Vec::new();
    for _ in 0..3 {
        match soon(notes.recv()).await.unwrap().what {
            ChildNews::Said(line) => said.push(line),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(said[..2], ["one", "two three"]);
    assert!(said[2].len() == 1_000 && said[2].starts_with("zzz"));
    let (flood, mut few) = {
        let (sender, notes) = mpsc::channel(2);
        (lines("next; yes word | head -n 100000 >&2; ok; cat").notes(sender), notes)
    };
    assert_eq!(ask(&flood, "d", "").await, Outcome::Succeeded);
    assert_eq!(few.recv().await.unwrap().what, ChildNews::Said("word".into()));
}

// ---- stops ---------------------------------------------------------------------------------------------------------

/// Asks, and stops the delivery when the child has touched `ready`.
async fn stopped(line: &str, marker: &Marker, reason: StopReason, grace: Duration) -> Outcome {
    let directory = tempdir().unwrap();
    let handler = LinesHandler::new(marker.mark(shell(line).workdir(directory.path())));
    let control = control();
    let stop = async {
        until(async || has(directory.path(), "ready")).await;
        control.stop(reason, Instant::now() + grace);
    };
    let (delivery, context) = (delivery("d", ""), control.context());
    let (outcome, ()) = tokio::join!(soon(handler.handle(&delivery, &context)), stop);
    assert_eq!(marker.processes(), [0; 0], "nothing outlives the attempt");
    outcome
}

const TIMED_OUT: StopReason = StopReason::TimedOut(Duration::from_secs(30));

#[tokio::test]
async fn a_time_out_ends_the_child_and_all_that_it_started() {
    let marker = Marker::new("lines-time-out");
    let line = "next; echo slow >&2; sleep 300 & touch ready; wait";
    let outcome = stopped(line, &marker, TIMED_OUT, Duration::from_secs(20)).await;
    assert_eq!(failure_of(outcome), (FailureKind::Timeout, "timed out after 30s: slow".to_owned()));
    let line = "trap '' TERM; next; (trap '' TERM; sleep 300) & touch ready; while :; do sleep 1; done";
    let outcome = stopped(line, &marker, TIMED_OUT, Duration::from_millis(200)).await;
    assert_eq!(failure_of(outcome).0, FailureKind::Timeout);
}

#[tokio::test]
async fn an_answer_within_the_grace_counts_unless_time_ran_out() {
    let marker = Marker::new("lines-grace");
    let line = "next; trap 'ok; exit 0' TERM; touch ready; while :; do sleep 0.01; done";
    let grace = Duration::from_secs(20);
    assert_eq!(stopped(line, &marker, StopReason::Shutdown, grace).await, Outcome::Succeeded);
    assert_eq!(failure_of(stopped(line, &marker, TIMED_OUT, grace).await).0, FailureKind::Timeout);
    let silent = "next; touch ready; while :; do sleep 0.01; done";
    for reason in [StopReason::Shutdown, StopReason::LeaseLost, StopReason::LeaseEnding] {
        assert_eq!(stopped(silent, &marker, reason, grace).await, Outcome::Released, "{reason:?}");
    }
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_nothing() {
    let marker = Marker::new("lines-dropped");
    let handler = Arc::new(LinesHandler::new(marker.mark(shell("next; sleep 300 & wait"))));
    let attempt = tokio::spawn({
        let handler = handler.clone();
        async move { handler.handle(&delivery("d", ""), &control().context()).await }
    });
    until(async || marker.processes().len() == 2).await;
    attempt.abort();
    until(async || marker.processes().is_empty()).await;
}

#[tokio::test]
async fn closing_ends_the_input_first_and_kills_in_the_end() {
    let directory = tempdir().unwrap();
    let marker = Marker::new("lines-close");
    let polite = format!("{LOOP}; echo bye >>farewell");
    let deaf = "trap '' TERM; next; ok; while :; do sleep 1; done";
    let talkative = "next; ok; trap 'echo term >>farewell; exit' TERM; while :; do echo la; done";
    for (line, expected) in [(&*polite, &["bye"][..]), (deaf, &["bye"]), (talkative, &["bye", "term"])] {
        let handler = LinesHandler::new(marker.mark(shell(line).workdir(directory.path())));
        assert_eq!(ask(&handler, "d", "").await, Outcome::Succeeded);
        assert!(!marker.processes().is_empty());
        soon(handler.close(&closing())).await;
        assert_eq!(marker.processes(), [0; 0], "{line}");
        assert_eq!(written(&directory, "farewell"), expected, "{line}");
    }
}

// ---- the worker ----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_worker_drains_and_its_children_find_the_end_of_their_input() {
    let (bench, directory, marker) = (Bench::new(), tempdir().unwrap(), Marker::new("lines-drain"));
    bench.publish_many("h", 200).await;
    let line = format!("{LOOP}; echo bye >>farewell");
    let handler = LinesHandler::new(marker.mark(shell(&line).workdir(directory.path())));
    let mut worker = bench.start(vec![subscription("h", handler).concurrency(4)], StopWhen::Never);
    for _ in 0..200 {
        assert_eq!(worker.next_finished().await.verdict, Verdict::Completed);
    }
    let children = marker.processes().len();
    assert!((1..=4).contains(&children), "{children}");
    let counts = worker.drain().await;
    assert_eq!((counts.completed, counts.released), (200, 0));
    assert_eq!(marker.processes(), [0; 0]);
    assert_eq!(written(&directory, "farewell").len(), children);
}

#[tokio::test]
async fn a_worker_retries_what_a_dead_child_had_in_flight() {
    let (bench, directory) = (Bench::new(), tempdir().unwrap());
    let line = "while next; do if [ $text = poison ] && [ ! -e cured ]; then touch cured; kill -KILL $$; fi; ok; done";
    for i in 0..10 {
        let text = if i == 4 { "poison" } else { "fine" };
        bench.publish(NewEvent::new("t", json!({ "text": text })).handler("h")).await;
    }
    let handler = LinesHandler::new(shell(line).workdir(directory.path()));
    let (counts, finished) = bench.run(vec![subscription("h", handler)], StopWhen::NothingDue).await;
    assert_eq!((counts.completed, counts.retried), (9, 1));
    let retried = finished.iter().find(|one| one.verdict != Verdict::Completed).unwrap();
    let Verdict::Retrying { failure, .. } = &retried.verdict else { panic!("{retried:?}") };
    assert_eq!((failure.kind.clone(), &*failure.message), (FailureKind::Failed, "killed by SIGKILL"));
    bench.clock.advance(Duration::from_secs(60));
    let again = LinesHandler::new(shell(line).workdir(directory.path()));
    let (counts, _) = bench.run(vec![subscription("h", again)], StopWhen::NothingDue).await;
    assert_eq!(counts.completed, 1);
    assert!(bench.deliveries().await.iter().all(|delivery| delivery.status == Status::Completed));
}

#[tokio::test]
async fn a_second_signal_is_not_held_up_by_a_child_that_stays() {
    let (bench, marker) = (Bench::new(), Marker::new("lines-hurry"));
    bench.publish_many("h", 1).await;
    let handler = LinesHandler::new(marker.mark(shell("next; ok; sleep 300")));
    let subscription =
        subscription("h", handler).kill_after(Duration::from_secs(60)).lease(Duration::from_secs(300));
    let mut worker = bench.start_with(vec![subscription], options());
    worker.next_finished().await;
    worker.signals.drain.cancel();
    worker.next(|event| matches!(event, DispatchEvent::Draining { .. }).then_some(())).await;
    worker.signals.stop.cancel();
    worker.end().await.unwrap();
    until(async || marker.processes().is_empty()).await;
}

// ---- batches -------------------------------------------------------------------------------------------------------

const FOUR: BatchLimits = BatchLimits { size: 4, at_once: 1 };

/// Writes each array that it reads to `batches`, and answers what `jq` would: with this line of shell for each id.
fn each(answer: &str) -> String {
    format!(
        r#"answers() {{
            printf '%s\n' "$line" >>batches
            printf '%s\n' "$line" | grep -o '"deliveryId":"[^"]*"' | cut -d '"' -f 4 | while read -r id; do {answer}; done
        }}"#
    )
}

async fn ask_all(handler: &impl Handler, ids: &[&str]) -> Vec<Outcome> {
    join_all(ids.iter().map(|id| ask(handler, id, ""))).await
}

fn sizes(directory: &TempDir) -> Vec<usize> {
    written(directory, "batches")
        .iter()
        .map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap().len())
        .collect()
}

#[tokio::test]
async fn a_lasting_child_gets_arrays_and_answers_in_lines_or_an_array() {
    let directory = tempdir().unwrap();
    let line = format!("{}; while next; do answers; done", each("ok"));
    let handler = LinesHandler::in_batches(shell(&line).workdir(directory.path()), FOUR);
    let ids: Vec<String> = (0..10).map(|i| format!("d-{i}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(ask_all(&handler, &ids).await, vec![Outcome::Succeeded; 10]);
    assert_eq!(sizes(&directory), [4, 4, 2]);
    let line = r#"next; echo '[{"id":"c","ok":true},{"id":"a","error":"no"},{"id":"b","error":"never","dead":true}]'; cat"#;
    let handler = LinesHandler::in_batches(shell(line), FOUR);
    let expected = [Outcome::failed("no"), Outcome::rejected("never"), Outcome::Succeeded];
    assert_eq!(ask_all(&handler, &["a", "b", "c"]).await, expected);
}

#[tokio::test]
async fn answers_of_a_batch_count_each_for_itself() {
    let line = r#"next; echo '{"id":"b","ok":true}'; echo gone >&2; exit 3"#;
    let handler = LinesHandler::in_batches(shell(line), FOUR);
    let gone = || Outcome::failed("exit status 3: gone");
    assert_eq!(ask_all(&handler, &["a", "b", "c"]).await, [gone(), Outcome::Succeeded, gone()]);
    let twice = r#"next; echo '[{"id":"a","ok":true},{"id":"a","ok":true}]'; sleep 300"#;
    let outcomes = ask_all(&LinesHandler::in_batches(shell(twice), FOUR), &["a", "b"]).await;
    assert_eq!(outcomes[0], Outcome::Succeeded);
    assert!(failure_of(outcomes[1].clone()).1.starts_with("answered twice: "));
}

#[tokio::test]
async fn as_many_batches_are_under_way_as_there_may_be() {
    let directory = tempdir().unwrap();
    let line = format!("{}; echo $$ >>pids; while next; do sleep 0.05; answers; done", each("ok"));
    let limits = BatchLimits { size: 2, at_once: 3 };
    let handler = LinesHandler::in_batches(shell(&line).workdir(directory.path()), limits);
    let ids: Vec<String> = (0..18).map(|i| format!("d-{i}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(ask_all(&handler, &ids).await, vec![Outcome::Succeeded; 18]);
    assert_eq!(written(&directory, "pids").len(), 3);
    assert_eq!(sizes(&directory), [2; 9]);
}

#[tokio::test]
async fn a_time_out_is_that_of_all_that_are_not_answered() {
    let marker = Marker::new("batch-time-out");
    let line = r#"next; echo '{"id":"a","ok":true}'; sleep 300"#;
    let handler = LinesHandler::in_batches(marker.mark(shell(line)), FOUR);
    let controls = [control(), control(), control()];
    let envelopes = ["a", "b", "c"].map(|id| delivery(id, ""));
    let contexts = [0, 1, 2].map(|i: usize| controls[i].context());
    let mut attempts: Vec<_> = envelopes
        .iter()
        .zip(&contexts)
        .map(|(envelope, context)| handler.handle(envelope, context))
        .collect();
    let rest = attempts.split_off(1);
    let rest = async { soon(join_all(rest)).await };
    let first = async {
        let outcome = soon(attempts.remove(0)).await;
        // The stop of one that is answered is of no concern.
        controls[0].stop(TIMED_OUT, Instant::now());
        controls[1].stop(TIMED_OUT, Instant::now() + Duration::from_secs(20));
        outcome
    };
    let (first, rest) = tokio::join!(first, rest);
    assert_eq!(first, Outcome::Succeeded);
    for outcome in rest {
        let expected = "timed out after 30s in a batch of 3".to_owned();
        assert_eq!(failure_of(outcome), (FailureKind::Timeout, expected));
    }
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn what_waits_for_a_batch_is_given_back_when_it_is_to_stop() {
    let directory = tempdir().unwrap();
    let line = format!(
        "{}; while next; do echo >begun; while [ ! -e go ]; do sleep 0.01; done; answers; done",
        each("ok")
    );
    let handler =
        LinesHandler::in_batches(shell(&line).workdir(directory.path()), BatchLimits { size: 1, at_once: 1 });
    let (waiting, draining) = (control(), CancellationToken::new());
    let drained = AttemptControl::new(START, draining.clone());
    let second = async {
        until(async || has(directory.path(), "begun")).await;
        waiting.stop(TIMED_OUT, Instant::now());
        let outcome = soon(handler.handle(&delivery("b", ""), &waiting.context())).await;
        draining.cancel();
        let third = soon(handler.handle(&delivery("c", ""), &drained.context())).await;
        std::fs::write(directory.path().join("go"), "").unwrap();
        (outcome, third)
    };
    let (first, (second, third)) = tokio::join!(ask(&handler, "a", ""), second);
    assert_eq!([first, second, third], [Outcome::Succeeded, Outcome::Released, Outcome::Released]);
    assert_eq!(ask(&handler, "d", "").await, Outcome::Succeeded);
    assert_eq!(sizes(&directory), [1, 1], "what was given back never reached the child");
}

fn batch_process(line: &str) -> BatchHandler {
    BatchHandler::new(shell(line), FOUR)
}

#[tokio::test]
async fn a_process_for_each_batch_answers_each_item() {
    let directory = tempdir().unwrap();
    let line = r#"echo $$ >>pids; cat >batch; printf '[{"id":"a","ok":true},{"id":"c","error":"no"}]'"#;
    let handler = BatchHandler::new(shell(line).workdir(directory.path()), FOUR);
    let missing = Outcome::failed("ended without an answer: exit status 0");
    for _ in 0..2 {
        let outcomes = ask_all(&handler, &["a", "b", "c"]).await;
        assert_eq!(outcomes, [Outcome::Succeeded, missing.clone(), Outcome::failed("no")]);
    }
    assert_eq!(written(&directory, "pids").len(), 2);
    let batch: Value = serde_json::from_str(&written(&directory, "batch")[0]).unwrap();
    assert_eq!(batch[2], serde_json::to_value(delivery("c", "")).unwrap());
}

#[tokio::test]
async fn the_exit_status_counts_for_all_that_a_process_did_not_answer() {
    let both = async |line: &str| ask_all(&batch_process(line), &["a", "b"]).await;
    let all = |outcome: Outcome| vec![outcome.clone(), outcome];
    assert_eq!(both("echo busy >&2; exit 75").await, all(Outcome::failed("exit status 75: busy")));
    assert_eq!(both("exit 65").await, all(Outcome::rejected("exit status 65")));
    assert_eq!(both("exit 0").await, all(Outcome::failed("ended without an answer: exit status 0")));
    let codes = ExitCodes::default().with(3, Meaning::Bury);
    let buried = ask_all(&batch_process("exit 3").exit_codes(codes), &["a", "b"]).await;
    assert_eq!(buried, all(Outcome::rejected("exit status 3")));
    let partly = both(r#"echo '{"id":"b","ok":true}'; exit 65"#).await;
    assert_eq!(partly, [Outcome::failed("exit status 65"), Outcome::Succeeded]);
    let garbage = both("echo hello; sleep 300").await;
    assert!(failure_of(garbage[1].clone()).1.contains("hello"));
    // The pipe's end is not awaited where a process that left the group holds it open.
    let started = Instant::now();
    let marker = Marker::new("left-the-batch");
    let line = r#"setsid sleep 30 & echo '[{"id":"a","ok":true},{"id":"b","ok":true}]'"#;
    let outcomes = ask_all(&BatchHandler::new(marker.mark(shell(line)), FOUR), &["a", "b"]).await;
    assert_eq!(outcomes, all(Outcome::Succeeded));
    assert!(started.elapsed() < Duration::from_secs(10));
    for pid in marker.processes() {
        std::process::Command::new("kill").arg(pid.to_string()).status().unwrap();
    }
}

#[tokio::test]
async fn a_process_that_answered_and_stays_is_stopped_with_its_batch() {
    let directory = tempdir().unwrap();
    let marker = Marker::new("stays");
    let line = r#"echo '{"id":"a","ok":true}'; exec >&-; touch ready; sleep 300"#;
    let handler = BatchHandler::new(marker.mark(shell(line).workdir(directory.path())), FOUR);
    let control = control();
    let stop = async {
        until(async || has(directory.path(), "ready")).await;
        control.stop(TIMED_OUT, Instant::now() + Duration::from_secs(20));
    };
    let (delivery, context) = (delivery("a", ""), control.context());
    let (outcome, ()) = tokio::join!(soon(handler.handle(&delivery, &context)), stop);
    assert_eq!(outcome, Outcome::Succeeded, "its answer stands");
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_worker_hands_out_batches_and_never_two_of_a_key() {
    let (bench, directory) = (Bench::new(), tempdir().unwrap());
    for i in 0..40 {
        let event = NewEvent::new("t", json!({ "text": "" })).handler("h").key(format!("k-{}", i % 10));
        bench.publish(event).await;
    }
    let line = format!("{}; while next; do answers; done", each("ok"));
    let limits = BatchLimits { size: 8, at_once: 2 };
    let handler = LinesHandler::in_batches(shell(&line).workdir(directory.path()), limits);
    let subscription = subscription("h", handler).concurrency(16);
    let (counts, _) = bench.run(vec![subscription], StopWhen::NothingUnfinished).await;
    assert_eq!(counts.completed, 40);
    let mut sequences = std::collections::HashMap::<String, Vec<i64>>::new();
    for line in written(&directory, "batches") {
        let batch: Vec<Value> = serde_json::from_str(&line).unwrap();
        let keys: std::collections::HashSet<_> = batch.iter().map(|one| one["key"].to_string()).collect();
        assert_eq!(keys.len(), batch.len(), "two of a key in one batch");
        for one in &batch {
            sequences.entry(one["key"].to_string()).or_default().push(one["sequence"].as_i64().unwrap());
        }
    }
    assert!(sequences.values().all(|of_key| of_key == &[1, 2, 3, 4]), "{sequences:?}");
}
