//! The time zone of whoever asks changes no answer.

use crate::harness::{Sandbox, ago, buried, event, finish};

/// With half hours, a date line between them, and summer time at work.
const ZONES: [&str; 4] = ["<+0530>-5:30", "Pacific/Kiritimati", "America/New_York", "Antarctica/Troll"];

#[test]
fn every_answer_is_the_same_in_all_zones() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a").key("k"), event("b").key("k")], ago(7_200));
    sandbox.settle("projector", &buried("boom"), ago(7_190));
    sandbox.append(&[event("c")], ago(60));
    let (dead, until) = (sandbox.delivery_of("a"), ago(3_600).to_string());
    for line in [
        "list -o json".to_owned(),
        "list --until 1h -o csv".to_owned(),
        format!("list --until {until} -o ids"),
        "list --since 3h --time utc".to_owned(),
        format!("list --finished-before {until} -o jsonl"),
        format!("show {dead} -o json"),
        format!("explain {dead} -o json"),
        "errors -o json".to_owned(),
        "stats -o json".to_owned(),
        "purge --dead-before 1h --dry-run -o json".to_owned(),
        format!("requeue --since {until} --status dead --dry-run -o json"),
        format!("backfill --handler late --type * --until {until} --dry-run -o json"),
    ] {
        let answer = |zone: &str| {
            let mut command = sandbox.command();
            command.env("TZ", zone).args(line.split(' '));
            finish(command).exits(0).stdout
        };
        let expected = answer("UTC");
        assert!(!expected.is_empty(), "{line}");
        for zone in ZONES {
            assert_eq!(answer(zone), expected, "{line} in {zone}");
        }
    }
}
