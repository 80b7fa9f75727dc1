//! Commands that write without end: the worker keeps the last words and forgets the rest.

use std::time::Duration;

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{NewEvent, Status};
use serde_json::json;

use super::processes::kb;
use super::worker::within;
use crate::harness::Sandbox;

const MB: usize = 1;
const GB: usize = 1024;

/// What a gigabyte may take more than a megabyte: less than a hundredth of what is held back when it is kept.
const SLACK_KB: u64 = 8 * 1024;

/// The most memory that a worker took, for a command of each kind that writes so many megabytes.
fn peak_kb(megabytes: usize) -> u64 {
    let sandbox = Sandbox::new();
    let handlers = ["stdout", "stderr", "lines-stderr", "operations"];
    let event = handlers.into_iter().fold(NewEvent::new("t", json!(1)), NewEvent::handler);
    sandbox.append(&[event], SystemClock.now());
    let text = FLOODS.replace("MEGABYTES", &megabytes.to_string());
    let file = sandbox.file("handlers.toml", text).display().to_string();
    let worker = sandbox.work("worker", &["-q", "--handlers", &file]);
    within(Duration::from_secs(200), "all are handled", || {
        sandbox
            .deliveries()
            .iter()
            .all(|one| one.status == Status::Completed || one.attempts == 1 && !one.errors.is_empty())
    });
    let peak = kb(worker.pid(), "VmHWM");
    for delivery in sandbox.deliveries() {
        let is_refused = delivery.handler == "operations";
        let expected = if is_refused { Status::Pending } else { Status::Completed };
        assert_eq!(delivery.status, expected, "{delivery:?}");
    }
    worker.send(Signal::SIGTERM);
    assert_eq!(worker.ends().status.code(), Some(0));
    peak
}

const FLOODS: &str = r#"
    [handlers.stdout]
    types = ["*"]
    timeout = "3m"
    shell = "head -c MEGABYTESM /dev/zero"

    [handlers.stderr]
    types = ["*"]
    timeout = "3m"
    shell = "head -c MEGABYTESM /dev/zero >&2"

    # One line without an end, and lines without number.
    [handlers.lines-stderr]
    types = ["*"]
    timeout = "3m"
    mode = "lines"
    shell = '''
        IFS= read -r event
        head -c MEGABYTESM /dev/zero >&2
        yes 'a line of an ordinary length, as a program writes them' | head -c MEGABYTESM >&2
        id=${event##*'"deliveryId":"'}
        printf '{"id":"%s","ok":true}\n' "${id%%\"*}"
        cat
    '''

    # Kept whole, up to its limit: more is refused.
    [handlers.operations]
    types = ["*"]
    timeout = "3m"
    transactional = true
    shell = "head -c MEGABYTESM /dev/zero"
    backoff = { kind = "fixed", base = "1h" }
"#;

#[test]
fn heavy_a_gigabyte_of_output_takes_no_more_memory_than_a_megabyte() {
    let (small, large) = (peak_kb(MB), peak_kb(GB));
    assert!(large <= small + SLACK_KB, "{large} kB for a gigabyte, {small} kB for a megabyte");
}
