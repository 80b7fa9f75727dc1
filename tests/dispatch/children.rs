//! The protocol between worker and child: stdin, environment, exit status, last words.

use std::ffi::OsString;
use std::time::Duration;

use relayctl::handler::{
    Command, DeadLetterHandler as _, Handler as _, Identity, Outcome, ShellHandler, Stdin,
};
use relayctl::model::{Failure, FailureKind, MAX_ERROR_MESSAGE_BYTES};
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::time::Instant;

use crate::support::{Marker, attempt, attempt_line, control, envelope, failure_of, soon};

fn payload_of(bytes: usize) -> Value {
    json!({ "text": "x".repeat(bytes) })
}

#[tokio::test]
async fn the_envelope_is_one_line_of_json_on_stdin() {
    let directory = tempdir().unwrap();
    let envelope = envelope(json!({"total": 4, "$oid": "not one", "note": "a\nb"}));
    let command = Command::shell("cat >envelope").workdir(directory.path());
    assert_eq!(attempt(command, &envelope).await, Outcome::Succeeded);
    let written = std::fs::read_to_string(directory.path().join("envelope")).unwrap();
    assert_eq!(written.matches('\n').count(), 1);
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), serde_json::to_value(&envelope).unwrap());
}

#[tokio::test]
async fn ten_megabytes_in_and_out_do_not_block() {
    let large = envelope(payload_of(10_000_000));
    assert_eq!(attempt(Command::argv("cat", [""; 0]), &large).await, Outcome::Succeeded);
    assert_eq!(attempt(Command::shell("tee /dev/stderr"), &large).await, Outcome::Succeeded);
}

#[tokio::test]
async fn two_hundred_kilobytes_do_not_meet_the_limits_of_an_environment() {
    let line = r#"test "$(wc -c)" -gt 200000"#;
    assert_eq!(attempt(Command::shell(line), &envelope(payload_of(200_000))).await, Outcome::Succeeded);
}

#[tokio::test]
async fn a_child_may_ignore_its_input_or_close_it_at_once() {
    let large = envelope(payload_of(1_000_000));
    for line in ["true", "exec <&-; true", "head -c 10 >/dev/null"] {
        assert_eq!(attempt(Command::shell(line), &large).await, Outcome::Succeeded, "{line}");
    }
    assert_eq!(attempt(Command::shell("exec <&-; exit 3"), &large).await, Outcome::failed("exit status 3"));
}

/// An envelope whose line is so long.
fn line_of(bytes: usize) -> relayctl::model::Envelope {
    let rest = serde_json::to_string(&envelope(payload_of(0))).unwrap().len() + 1;
    envelope(payload_of(bytes - rest))
}

#[tokio::test]
async fn an_input_about_as_large_as_a_pipe_arrives_whole() {
    const PIPE: usize = 64 * 1024;
    for bytes in [PIPE - 1, PIPE, PIPE + 1, 2 * PIPE + 1] {
        for line in ["", "sleep 0.05;", "head -c 200000 /dev/zero;"] {
            let line = format!("{line} test $(wc -c) -eq {bytes}");
            assert_eq!(attempt(Command::shell(&line), &line_of(bytes)).await, Outcome::Succeeded, "{line}");
        }
        assert_eq!(
            attempt(Command::shell("exit 3"), &line_of(bytes)).await,
            Outcome::failed("exit status 3")
        );
    }
}

#[tokio::test]
async fn last_words_are_heard_however_much_was_said_and_however_late() {
    let before =
        ["head -c 65536 /dev/zero", "head -c 65537 /dev/zero", "head -c 1000000 /dev/zero", "sleep 0.1"];
    for line in before {
        let said = failure_of(attempt_line(&format!("{line} >&2; echo last words >&2; exit 3")).await).1;
        assert!(said.ends_with("last words"), "{line}");
        let said = failure_of(attempt_line(&format!("{line}; echo last words; exit 3")).await).1;
        assert!(said.ends_with("last words"), "{line}");
    }
    let line = "echo first >&2; sleep 0.1; echo second >&2; sleep 0.1; cat; echo third >&2; exit 3";
    assert_eq!(attempt_line(line).await, Outcome::failed("exit status 3: first\nsecond\nthird"));
}

#[tokio::test]
async fn a_background_process_that_never_stops_talking_ends_with_its_command() {
    let started = Instant::now();
    for line in ["yes & exit 0", "sh -c 'while :; do echo word; done' & exit 0"] {
        assert_eq!(attempt_line(line).await, Outcome::Succeeded);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn many_children_leave_no_open_file() {
    // In a process of its own, as other tests open files at the same time.
    if !is_alone("children::many_children_leave_no_open_file", &[]) {
        return;
    }
    let lines = ["exit 0", "exit 3", "sleep 0.02", "exec <&- >&- 2>&-; sleep 0.02", "no-such-program"];
    let (small, large) = (line_of(1_000), line_of(200_000));
    let all = async || {
        for line in lines {
            tokio::join!(attempt(Command::shell(line), &small), attempt(Command::shell(line), &large));
        }
        attempt(Command::argv("no-such-program", [""; 0]), &small).await;
    };
    all().await;
    let before = open_files();
    for _ in 0..10 {
        all().await;
    }
    assert_eq!(open_files(), before);
}

fn write_program(path: &std::path::Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_program_is_found_as_the_system_finds_it() {
    let directory = tempdir().unwrap();
    let at = |place: &str| directory.path().join(place);
    write_program(&at("first/tell"), "#!/bin/sh\nexit 4\n", 0o644);
    write_program(&at("second/tell"), "#!/bin/sh\nexit 5\n", 0o755);
    write_program(&at("third/tell"), "exit 6\n", 0o755);
    let code = async |path: String| {
        let command = Command::argv("tell", [""; 0]).env("PATH", path).workdir(directory.path());
        failure_of(attempt(command, &envelope(json!(1))).await).1
    };
    let [first, second, third] =
        ["first", "second", "third"].map(|place| at(place).to_str().unwrap().to_owned());
    assert_eq!(code(format!("/no/dir:{first}:{second}:{third}")).await, "exit status 5");
    assert_eq!(code("second".into()).await, "exit status 5", "of the child's directory");
    assert_eq!(code(format!("third:{second}")).await, "exit status 6", "the child's directory comes first");
    assert_eq!(code(third).await, "exit status 6", "a script that does not say for what");
    assert!(code(first).await.starts_with("cannot start `tell`: Permission denied"));
}

#[tokio::test]
async fn a_program_is_called_as_it_is_named() {
    let line = OsString::from(r#"test "$(tr '\0' '\n' </proc/$$/cmdline | head -n 1)" = sh"#);
    assert_eq!(
        attempt(Command::argv("sh", [OsString::from("-c"), line]), &envelope(json!(1))).await,
        Outcome::Succeeded
    );
}

#[tokio::test]
async fn the_exit_status_decides() {
    assert_eq!(attempt_line("exit 0").await, Outcome::Succeeded);
    for code in [65, 78] {
        let line = format!("echo bad order >&2; exit {code}");
        assert_eq!(attempt_line(&line).await, Outcome::rejected(format!("exit status {code}: bad order")));
    }
    for code in [1, 2, 64, 75, 126, 143, 255] {
        let line = format!("echo try later >&2; exit {code}");
        assert_eq!(attempt_line(&line).await, Outcome::failed(format!("exit status {code}: try later")));
    }
    assert_eq!(attempt_line("kill -SEGV $$").await, Outcome::failed("killed by SIGSEGV"));
    assert_eq!(attempt_line("kill -TERM $$").await, Outcome::failed("killed by SIGTERM"));
}

#[tokio::test]
async fn an_interrupted_child_spends_no_attempt_when_the_worker_drains() {
    // Not INT: whoever starts the tests in the background may have made it ignored.
    for line in ["kill -TERM $$", "exit 130", "exit 143"] {
        let draining = tokio_util::sync::CancellationToken::new();
        draining.cancel();
        let control = relayctl::handler::AttemptControl::new(crate::support::START, draining);
        let handler = ShellHandler::new(Command::shell(line));
        let outcome = soon(handler.handle(&envelope(json!(1)), &control.context())).await;
        assert_eq!(outcome, Outcome::Released, "{line}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_start_is_named() {
    let nothing = envelope(json!(1));
    let message = |outcome| failure_of(outcome).1;
    let missing = attempt(Command::argv("no-such-program", ["secret"]), &nothing).await;
    assert_eq!(message(missing), "cannot start `no-such-program`: No such file or directory (os error 2)");
    let not_executable = attempt(Command::argv("/etc/passwd", [""; 0]), &nothing).await;
    assert_eq!(message(not_executable), "cannot start `/etc/passwd`: Permission denied (os error 13)");
    let no_directory = attempt(Command::argv("cat", [""; 0]).workdir("/no/where"), &nothing).await;
    assert_eq!(
        message(no_directory),
        "cannot start `cat` in /no/where: No such file or directory (os error 2)"
    );
    let in_shell = message(attempt(Command::shell("no-such-program"), &nothing).await);
    assert!(in_shell.starts_with("exit status 127: ") && in_shell.contains("no-such-program"), "{in_shell}");
}

#[tokio::test]
async fn stderr_may_hold_anything() {
    let (kind, message) = failure_of(attempt_line(r"printf 'a\0b\377\033[31mc\n' >&2; exit 1").await);
    assert_eq!((kind, &*message), (FailureKind::Failed, "exit status 1: a\0b\u{fffd}\u{1b}[31mc"));
    assert_eq!(failure_of(attempt_line("echo on stdout; exit 1").await).1, "exit status 1: on stdout");
}

/// The peak of this process' resident memory, in kilobytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_hundred_megabytes_of_stderr_leave_their_tail_and_no_trace_in_memory() {
    // In a process of its own, as other tests need memory at the same time.
    if !is_alone("children::a_hundred_megabytes_of_stderr_leave_their_tail_and_no_trace_in_memory", &[]) {
        return;
    }
    // The first child brings in the pages of the program that every one needs.
    attempt_line("head -c 100000 /dev/zero >&2; exit 3").await;
    let before = peak_memory();
    let line = "head -c 100000000 /dev/zero >&2; head -c 100000000 /dev/zero; echo last words >&2; exit 3";
    let (_, message) = failure_of(attempt_line(line).await);
    assert!(message.starts_with("exit status 3: …\0\0\0") && message.ends_with("\0\0last words"));
    assert!((8_000..=MAX_ERROR_MESSAGE_BYTES).contains(&message.len()), "{}", message.len());
    let grown = peak_memory() - before;
    assert!(grown < 4_000, "memory grew by {grown} kB");
}

/// Whether this test has a process of its own; otherwise runs it in one, with `variables` set, and says no.
fn is_alone(test: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "TEST_IN_ITS_OWN_PROCESS";
    if std::env::var_os(MARK).is_some_and(|running| running == test) {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(MARK, test).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("1 passed"), "{report}");
    false
}

#[tokio::test]
async fn the_environment_is_the_short_list_and_holds_no_secret() {
    let secret = "mongodb://admin:hunter2@db/";
    let variables = [
        ("RELAYCTL_STORE", secret),
        ("DATABASE_URL", secret),
        ("RELAY_KEY", "from outside"),
        ("LC_TIME", "C"),
        ("TZ", "UTC"),
        ("API_BASE", "http://api"),
    ];
    if !is_alone("children::the_environment_is_the_short_list_and_holds_no_secret", &variables) {
        return;
    }
    let directory = tempdir().unwrap();
    let copy_into = |file: &str, of: &str| {
        let arguments = [OsString::from(of), directory.path().join(file).into_os_string()];
        Command::argv("cp", arguments).env("MODE", "test").inherit_env("API_BASE").inherit_env("NOT_SET")
    };
    let envelope = envelope(json!({"password": "hunter2"}));
    assert_eq!(attempt(copy_into("environ", "/proc/self/environ"), &envelope).await, Outcome::Succeeded);
    assert_eq!(attempt(copy_into("cmdline", "/proc/self/cmdline"), &envelope).await, Outcome::Succeeded);

    let environ = std::fs::read_to_string(directory.path().join("environ")).unwrap();
    let found: Vec<_> = environ.split_terminator('\0').map(|entry| entry.split_once('=').unwrap()).collect();
    let inherited = ["PATH", "HOME", "USER", "LANG", "LC_TIME", "TZ", "TMPDIR", "API_BASE"];
    let here = std::env::vars().filter(|(name, _)| inherited.contains(&&**name) || name.starts_with("LC_"));
    let facts = [
        ("MODE", "test"),
        ("RELAY_DELIVERY_ID", "d-1"),
        ("RELAY_EVENT_ID", "e-1"),
        ("RELAY_EVENT_TYPE", "order.placed.v1"),
        ("RELAY_HANDLER", "h"),
        ("RELAY_KEY", "k"),
        ("RELAY_SEQUENCE", "7"),
        ("RELAY_ATTEMPT", "2"),
        ("RELAY_MAX_ATTEMPTS", "5"),
        ("RELAY_LEASE_EXPIRES_AT", "2025-11-30T18:40:00.000Z"),
    ];
    let mut expected: Vec<_> = here.chain(facts.map(|(name, value)| (name.into(), value.into()))).collect();
    expected.sort();
    let mut found: Vec<_> =
        found.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    found.sort();
    assert_eq!(found, expected);
    let cmdline = std::fs::read_to_string(directory.path().join("cmdline")).unwrap();
    assert!(cmdline.starts_with("cp\0") && !cmdline.contains("hunter2"), "{cmdline}");
}

#[tokio::test]
async fn a_fact_that_no_environment_can_hold_is_left_out() {
    let mut envelope = envelope(json!(1));
    envelope.key = Some("a\0b".into());
    let line = r#"test -z "${RELAY_KEY+set}" && test "$RELAY_SEQUENCE" = 7"#;
    assert_eq!(attempt(Command::shell(line), &envelope).await, Outcome::Succeeded);
}

#[tokio::test]
async fn quick_children_are_quick() {
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(attempt_line("cat >/dev/null").await, Outcome::Succeeded);
    }
    // Every wait inside has a bound of 250 ms or more: none of them may be met when all goes well.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

// ---- what a handler may be given otherwise ---------------------------------------------------------------------------

#[tokio::test]
async fn a_trace_context_is_handed_on_if_it_is_well_formed() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut traced = envelope(json!({}));
    traced.headers = json!({"traceparent": PARENT, "tracestate": "shop=1"});
    let line = format!(r#"test "$TRACEPARENT $TRACESTATE" = "{PARENT} shop=1""#);
    assert_eq!(attempt(Command::shell(line).env("TRACEPARENT", "own"), &traced).await, Outcome::Succeeded);
    traced.headers = json!({"traceparent": "00-$(reboot)", "tracestate": "shop=1"});
    let line = r#"test -z "${TRACEPARENT+set}${TRACESTATE+set}""#;
    assert_eq!(attempt(Command::shell(line), &traced).await, Outcome::Succeeded);
}

#[tokio::test]
async fn stdin_has_the_form_that_is_asked_for() {
    for (stdin, line) in [
        (Stdin::Payload, r#"test "$(cat)" = '{"total":4}'"#),
        (
            Stdin::CloudEvents { source: "/shop".into() },
            r#"grep -q '"specversion":"1.0".*"source":"/shop".*"data":{"total":4}'"#,
        ),
    ] {
        let handler = ShellHandler::new(Command::shell(line)).stdin(stdin);
        let outcome = soon(handler.handle(&envelope(json!({"total": 4})), &control().context())).await;
        assert_eq!(outcome, Outcome::Succeeded, "{line}");
    }
}

#[tokio::test]
async fn a_nice_command_and_all_that_it_starts_have_a_lower_priority() {
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, behind_name) = own.rsplit_once(')').unwrap();
    let own: i32 = behind_name.split_ascii_whitespace().nth(16).unwrap().parse().unwrap();
    let expected = (own + 3).min(19);
    let line = format!(r#"test "$(nice)" = {expected} && exec sh -c 'test "$(nice)" = {expected}'"#);
    assert_eq!(attempt(Command::shell(&line).nice(3), &envelope(json!({}))).await, Outcome::Succeeded);
    let outcome = attempt(Command::argv("false", [""; 0]).nice(3), &envelope(json!({}))).await;
    assert_eq!(outcome, Outcome::failed("exit status 1"));
    let check = Command::argv("no-such-program", [""; 0]).nice(3).check();
    assert_eq!(check, Err("there is no command `no-such-program` in PATH".to_owned()));
}

/// For root the children are somebody else's; for others the wish is refused.
#[tokio::test]
async fn only_roots_commands_can_run_as_somebody_else() {
    let found = Identity::find(Some("nobody"), None);
    if !nix::unistd::geteuid().is_root() {
        assert_eq!(found.unwrap_err().to_string(), "user: only root can run commands as somebody else");
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let line = format!(
        r#"test "$(id -u) $(id -g) $(id -G) $USER $HOME" = "{uid} {gid} {gid} nobody {home}""#,
        uid = nobody.uid,
        gid = nobody.gid,
        home = nobody.dir.display()
    );
    let command = Command::shell(line).run_as(found.unwrap()).nice(1);
    assert_eq!(attempt(command, &envelope(json!({}))).await, Outcome::Succeeded);
    let with_group = Identity::find(Some("nobody"), Some("0")).unwrap();
    let command = Command::shell(r#"test "$(id -g)" = 0"#).run_as(with_group);
    assert_eq!(attempt(command, &envelope(json!({}))).await, Outcome::Succeeded);
    let unknown = |user, group| Identity::find(user, group).unwrap_err().to_string();
    assert_eq!(unknown(Some("no such user"), None), "user: there is no user `no such user`");
    assert_eq!(unknown(Some("nobody"), Some("no such group")), "group: there is no group `no such group`");
}

/// The worker's signals reach what belongs to somebody else.
#[tokio::test]
async fn a_command_of_somebody_else_is_ended_with_all_that_it_started() {
    if !nix::unistd::geteuid().is_root() {
        assert!(Identity::find(Some("nobody"), None).is_err());
        return;
    }
    let marker = Marker::new("somebody-else");
    let nobody = Identity::find(Some("nobody"), None).unwrap();
    let command = marker.mark(Command::shell("sleep 300 & exit 3")).run_as(nobody);
    assert_eq!(attempt(command, &envelope(json!({}))).await, Outcome::failed("exit status 3"));
    assert_eq!(marker.processes(), Vec::<u32>::new());
}

#[tokio::test]
async fn the_command_for_the_dead_gets_envelope_and_failure() {
    let directory = tempdir().unwrap();
    let envelope = envelope(json!({"total": 4}));
    let failure = Failure::new(FailureKind::Timeout, "timed out after 1s");
    let line = r#"cat >dead; test "$RELAY_FAILURE_KIND $RELAY_DELIVERY_ID" = "timeout $ID""#;
    let command = Command::shell(line).workdir(directory.path()).env("ID", envelope.delivery_id.as_str());
    let handler = ShellHandler::new(command).stdin(Stdin::Payload);
    assert_eq!(soon(handler.dead(&envelope, &failure, &control().context())).await, Ok(()));
    let dead: Value =
        serde_json::from_str(&std::fs::read_to_string(directory.path().join("dead")).unwrap()).unwrap();
    assert_eq!(dead["failure"], json!({"kind": "timeout", "message": "timed out after 1s"}));
    assert_eq!((&dead["payload"], &dead["attempt"]), (&json!({"total": 4}), &json!(envelope.attempt)));
    let broken = ShellHandler::new(Command::shell("echo pager is off >&2; exit 1"));
    let error = soon(broken.dead(&envelope, &failure, &control().context())).await;
    assert_eq!(error, Err("exit status 1: pager is off".to_owned()));
}
