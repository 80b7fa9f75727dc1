//! `check`: the convention of monitoring, with exit codes of its own.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::harness::{Ended, Sandbox, ago, buried, event, finish, free_port, relayctl};
use crate::stock::HANDLER;

/// Three dead ones, two of them of another handler, one whose worker died, one that runs, and one that has been due for an hour.
fn troubled() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("x").handler("mailer"), event("y")], ago(7_200));
    assert_eq!(sandbox.settle(HANDLER, &buried("boom"), ago(7_100)), 2);
    assert_eq!(sandbox.settle("mailer", &buried("boom"), ago(7_100)), 1);
    sandbox.append(&[event("crashed")], ago(5_000));
    assert_eq!(sandbox.claim(HANDLER, Duration::from_secs(60), ago(5_000)).len(), 1);
    sandbox.append(&[event("running")], ago(4_995));
    assert_eq!(sandbox.claim(HANDLER, Duration::from_secs(86_400), ago(4_990)).len(), 1);
    sandbox.append(&[event("late")], ago(3_600));
    sandbox
}

fn check(sandbox: &Sandbox, arguments: &str) -> Ended {
    sandbox.go(&format!("check {arguments}"))
}

#[test]
fn thresholds_decide_the_exit_code() {
    let sandbox = troubled();
    let cases = [
        (
            "--dead-warn 4 --pending-warn 2 --oldest-warn 3h --expired-warn 2",
            0,
            "RELAYCTL OK - all is well in ",
        ),
        ("--dead-warn 3", 1, "RELAYCTL WARNING - 3 dead (threshold 3) | 'dead'=3;3;;0 "),
        ("--dead-warn 1 --dead-crit 3", 2, "RELAYCTL CRITICAL - 3 dead (threshold 3) | 'dead'=3;1;3;0 "),
        ("--pending-crit 1", 2, "RELAYCTL CRITICAL - 1 waiting (threshold 1) | "),
        ("--oldest-warn 1h", 1, "RELAYCTL WARNING - oldest due for 1h (threshold 1h) | "),
        (
            "--expired-crit 1 --dead-warn 1",
            2,
            "RELAYCTL CRITICAL - 3 dead (threshold 1), 1 expired lease (threshold 1) | ",
        ),
        ("--handler mailer --dead-warn 2", 0, "RELAYCTL OK - "),
        (
            "--handler mailer --dead-warn 1",
            1,
            "RELAYCTL WARNING - mailer: 1 dead (threshold 1) | 'mailer dead'=1;1;;0 ",
        ),
        ("--handler nobody --dead-warn 1", 0, "RELAYCTL OK - "),
        (
            "--per-handler --dead-crit 2",
            2,
            "RELAYCTL CRITICAL - projector: 2 dead (threshold 2) | 'mailer dead'=1;;2;0 ",
        ),
    ];
    for (arguments, code, line) in cases {
        let ended = check(&sandbox, arguments).exits(code);
        assert!(ended.stdout.starts_with(line), "{arguments}: {}", ended.stdout);
        assert_eq!((ended.stdout.lines().count(), ended.stderr.as_str()), (1, ""), "{arguments}");
    }
}

#[test]
fn whatever_keeps_it_from_finding_out_is_unknown() {
    let sandbox = troubled();
    let ended = check(&sandbox, "").exits(3);
    assert!(ended.stdout.starts_with("RELAYCTL UNKNOWN - `check` has no threshold"), "{ended:?}");
    check(&sandbox, "--dead-warn many").exits(3).prints("").complains("--dead-warn");
    check(&sandbox, "--nonsense").exits(3).prints("").complains("--nonsense");
    sandbox.go("list --nonsense").exits(2);
    let not_set_up = Sandbox::without_schema();
    let ended = check(&not_set_up, "--dead-warn 1").exits(3);
    assert!(ended.stdout.starts_with("RELAYCTL UNKNOWN - the outbox is not set up in "), "{ended:?}");
    let home = tempfile::tempdir().unwrap();
    let away = |arguments: &str| {
        let mut command = relayctl(home.path());
        let url = format!("mongodb://127.0.0.1:{}/shop?replicaSet=rs0", free_port());
        command.env("RELAYCTL_STORE", url).args(arguments.split(' '));
        finish(command).exits(3)
    };
    let line = away("check --dead-warn 1 --connect-timeout 500ms").stdout;
    assert!(line.starts_with("RELAYCTL UNKNOWN - ") && line.lines().count() == 1, "{line}");
    let json = away("check -o json --connect-timeout 500ms").json();
    assert_eq!(
        (json["status"].as_str(), json["checks"].as_array().map(Vec::len)),
        (Some("unknown"), Some(0))
    );
    finish({
        let mut command = relayctl(home.path());
        command.args(["check", "--dead-warn", "1"]);
        command
    })
    .exits(3);
}

#[test]
fn a_file_for_the_exporter_is_replaced_as_a_whole_and_readable() {
    let sandbox = troubled();
    let file = sandbox.home.path().join("relayctl.prom");
    let out = format!("--format prometheus --outfile {}", file.display());
    check(&sandbox, &format!("--per-handler --dead-crit 2 {out}")).exits(2).prints("");
    let text = std::fs::read_to_string(&file).unwrap();
    for line in [
        "relayctl_check_up 1.0",
        "relayctl_dead{handler=\"mailer\"} 1.0",
        "relayctl_dead{handler=\"projector\"} 2.0",
        "relayctl_expired_leases{handler=\"mailer\"} 0.0",
        "relayctl_expired_leases{handler=\"projector\"} 1.0",
        "relayctl_pending{handler=\"projector\"} 1.0",
        "relayctl_check_status{handler=\"projector\"} 2.0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    let mut command = relayctl(sandbox.home.path());
    let url = format!("mongodb://127.0.0.1:{}/shop?replicaSet=rs0", free_port());
    command.env("RELAYCTL_STORE", url).args(["check", "--connect-timeout", "500ms"]).args(out.split(' '));
    finish(command).exits(3).prints("");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("relayctl_check_up 0.0\n") && !text.contains("mailer"), "{text}");
    let left = std::fs::read_dir(sandbox.home.path()).unwrap().count();
    check(&sandbox, &out).exits(0);
    assert_eq!(std::fs::read_dir(sandbox.home.path()).unwrap().count(), left, "nothing is left beside it");
    let nowhere = "--dead-warn 1 --outfile /nowhere/relayctl.prom";
    check(&sandbox, nowhere).exits(3).complains("cannot write /nowhere/relayctl.prom");
}

#[test]
fn a_document_has_every_number() {
    let sandbox = troubled();
    let document = check(&sandbox, "-o json --dead-warn 1 --oldest-crit 1h").exits(2).json();
    assert_eq!(document["status"], "critical");
    let told: Vec<(&str, &str)> = document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| {
            assert!(check["handler"].is_null());
            (check["measure"].as_str().unwrap(), check["status"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        told,
        [("dead", "warning"), ("pending", "ok"), ("expired", "ok"), ("oldestDueMs", "critical")]
    );
    assert_eq!(document["checks"][0]["value"], 3);
    assert!(document["checks"][3]["value"].as_u64().unwrap() >= 3_600_000);
}
