//! `show`: one delivery in full, and why it does not run.

use std::time::Duration;

use relayctl::model::{Failure, FailureKind, NewEvent};
use relayctl::store::Outcome;
use serde_json::json;

use crate::harness::{Sandbox, ago, buried, event};

fn shown(sandbox: &Sandbox, event: &str) -> String {
    sandbox.run(["show", &sandbox.delivery_of(event)]).quiet_stdout()
}

#[test]
fn a_dead_delivery_tells_its_history() {
    let sandbox = Sandbox::new();
    let placed = NewEvent {
        payload: json!({ "items": [{ "sku": "A-1" }] }),
        correlation_id: Some("request-7".into()),
        ..event("placed")
    };
    sandbox.append(&[placed], ago(7_200));
    let failure = Failure::new(FailureKind::Timeout, "no answer within 30 s");
    sandbox.settle("projector", &Outcome::Reschedule { available_at: ago(3_000), failure }, ago(3_605));
    sandbox.settle("projector", &buried("order unknown\nsee the log"), ago(185));
    let text = shown(&sandbox, "placed").replace(&sandbox.delivery_of("placed"), "DELIVERY");
    insta::assert_snapshot!(text, @r#"
    Delivery DELIVERY
      status    dead
      handler   projector
      event     placed
      type      order.placed.v1
      attempts  2
      created   2h ago
      updated   3m ago

    It is dead since 3m ago: attempt 2, 3m ago, rejected: order unknown
    To run it again: relayctl requeue DELIVERY

    Event placed
      created         2h ago
      correlation id  request-7
      payload
        {
          "items": [
            {
              "sku": "A-1"
            }
          ]
        }

    Failures, latest last
      1h ago  attempt 1  timeout
        no answer within 30 s
      3m ago  attempt 2  rejected
        order unknown
        see the log
    "#);
}

#[test]
fn json_holds_delivery_event_and_blocker() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("first").key("k"), event("second").key("k")], ago(60));
    let second = sandbox.run(["show", &sandbox.delivery_of("second"), "-o", "json"]).exits(0).json();
    assert_eq!(second["delivery"]["eventId"], "second");
    assert_eq!(second["event"]["payload"], json!({ "order": "second" }));
    assert_eq!(second["blockedBy"]["eventId"], "first");
    let codes = ["due", "blocked-by-earlier", "due", "no-worker-seen", "waiting"];
    let findings = second["findings"].as_array().unwrap();
    assert_eq!(findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect::<Vec<_>>(), codes);
    let first = sandbox.run(["show", &sandbox.delivery_of("first"), "-o", "json"]).exits(0).json();
    assert_eq!(first.get("blockedBy"), None);
}

#[test]
fn what_blocks_a_delivery_is_said_in_words() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("first").key("k"), event("second").key("k"), event("third").key("k")], ago(60));
    let failure = Failure::new(FailureKind::Failed, "warehouse is closed");
    let retry =
        Outcome::Reschedule { available_at: ago(0).saturating_add(Duration::from_secs(3_599)), failure };
    sandbox.settle("projector", &retry, ago(30));
    let text = shown(&sandbox, "third");
    assert!(
        text.contains("It is blocked: an earlier one of its handler and key has to finish first."),
        "{text}"
    );
    assert!(text.contains(&sandbox.delivery_of("first")) && text.contains("due in 59m"), "{text}");
    assert!(text.contains("warehouse is closed"), "{text}");
    assert!(text.contains("2 of its handler and key are before it, and none waits behind it."), "{text}");
}

#[test]
fn each_situation_has_its_sentence() {
    let sandbox = Sandbox::new();
    let later =
        NewEvent { available_at: Some(ago(0).saturating_add(Duration::from_secs(7_199))), ..event("later") };
    sandbox.append(&[event("done")], ago(600));
    sandbox.settle("projector", &Outcome::Complete, ago(590));
    sandbox.append(&[event("lost")], ago(500));
    sandbox.claim("projector", Duration::from_secs(60), ago(490));
    sandbox.append(&[NewEvent { handlers: vec!["other".into()], ..event("held") }], ago(400));
    sandbox.claim("other", Duration::from_secs(86_400), ago(390));
    sandbox.append(&[NewEvent { handlers: vec!["third".into()], ..event("free") }, later], ago(60));
    for (event, sentence) in [
        ("done", "It is done, completed 9m ago."),
        ("lost", "Its lease ran out"),
        ("held", "Worker worker-host:4711 holds it under a live lease, "),
        ("free", "It became due 1m ago.\nNobody seems to run handler third: "),
        ("later", "It waits for its time, in 1h."),
    ] {
        let text = shown(&sandbox, event);
        assert!(text.contains(sentence), "{event}: {text}");
    }
}

#[test]
fn an_unknown_id_fails_with_a_hint() {
    let ended = Sandbox::new().go("show nothing").exits(1);
    assert!(ended.stderr.starts_with("error: there is no delivery `nothing` in "), "{ended:?}");
    assert!(ended.stderr.contains("hint: "), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn an_event_that_is_gone_is_said_to_be() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("gone")], ago(60));
    let id = sandbox.delivery_of("gone");
    sandbox.with_database(async |database| {
        database.collection::<mongodb::bson::Document>("relaybus_events").drop().await.unwrap();
    });
    assert!(sandbox.run(["show", &id]).quiet_stdout().contains("not in the store any more"));
    assert_eq!(sandbox.run(["show", &id, "-o", "json"]).exits(0).json()["event"], json!(null));
}
