//! Deliveries in listings.

use super::listing::Record;
use super::table::{Cell, Column};
use super::time::Times;
use crate::cli::ui::Meaning;
use crate::model::{Delivery, Status, Timestamp};

impl Record for Delivery {
    const COLUMNS: &'static [Column] = &[
        Column::words("ID"),
        Column::words("STATUS").folds(6, ""),
        Column::words("HANDLER").folds(4, ""),
        Column::words("WHEN").folds(5, ""),
        Column::number("TRY").folds(3, "try "),
        Column::words("TYPE").folds(2, ""),
        Column::words("KEY").folds(1, "key "),
        Column::free_text("ERROR").folds(0, ""),
    ];

    const FIELDS: &'static [&'static str] = &[
        "id",
        "eventId",
        "eventType",
        "handler",
        "key",
        "sequence",
        "status",
        "lane",
        "attempts",
        "maxAttempts",
        "availableAt",
        "leaseExpiresAt",
        "leaseToken",
        "leaseOwner",
        "dueAt",
        "createdAt",
        "updatedAt",
        "completedAt",
        "lastError",
        "requeues",
    ];

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn values(&self) -> Vec<String> {
        let time = |instant: Option<Timestamp>| instant.map(|at| at.to_string()).unwrap_or_default();
        vec![
            self.id.to_string(),
            self.event_id.to_string(),
            self.event_type.clone(),
            self.handler.clone(),
            self.key.clone().unwrap_or_default(),
            self.sequence.map(|n| n.to_string()).unwrap_or_default(),
            self.status.to_string(),
            self.lane.to_string(),
            self.attempts.to_string(),
            self.max_attempts.map(|n| n.to_string()).unwrap_or_default(),
            self.available_at.to_string(),
            time(self.lease_expires_at),
            self.lease_token.as_ref().map(|token| token.to_string()).unwrap_or_default(),
            self.lease_owner.clone().unwrap_or_default(),
            time(self.due_at),
            self.created_at.to_string(),
            self.updated_at.to_string(),
            time(self.completed_at),
            self.last_error.clone().unwrap_or_default(),
            self.requeues.to_string(),
        ]
    }

    fn cells(&self, times: &Times) -> Vec<Cell> {
        vec![
            Cell::new(self.id.as_str()),
            Cell::new(self.status.as_str()).meaning(Meaning::Status(self.status)),
            Cell::new(&self.handler),
            Cell::new(when(self, times)),
            Cell::new(tries(self)),
            Cell::new(&self.event_type),
            Cell::maybe(self.key.as_ref()),
            Cell::maybe(self.last_error.as_ref()),
        ]
    }
}

/// What comes next, or what came last: `due in 5s`, `lease ended 3m ago`, `died 2h ago`.
pub fn when(delivery: &Delivery, times: &Times) -> String {
    let (word, instant) = match (delivery.status, delivery.due_at) {
        (Status::Pending, due) => ("due", due.unwrap_or(delivery.available_at)),
        (Status::Processing, Some(expiry)) if expiry <= times.now => ("expired", expiry),
        (Status::Processing, Some(expiry)) => ("lease ends", expiry),
        (Status::Processing, None) => ("leased", delivery.updated_at),
        (Status::Completed, _) => ("done", delivery.finished_at().unwrap_or(delivery.updated_at)),
        (Status::Dead, _) => ("died", delivery.updated_at),
    };
    format!("{word} {}", times.show(instant))
}

/// Attempts made, and of how many, where that is known.
pub fn tries(delivery: &Delivery) -> String {
    match delivery.max_attempts {
        Some(limit) => format!("{}/{limit}", delivery.attempts),
        None => delivery.attempts.to_string(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli::render::table::{Canvas, write_table};
    use crate::cli::render::text::{is_harmful, width};
    use crate::config::TimeStyle;
    use crate::model::{DeliveryId, EventId, Lane};

    const NOW: Timestamp = Timestamp::from_millis(1_796_040_000_000);

    /// A delivery in a status, due, leased until or finished at an offset from [`NOW`] in seconds.
    pub fn delivery(id: &str, status: Status, offset: i64) -> Delivery {
        let at = Timestamp::from_millis(NOW.as_millis() + offset * 1_000);
        Delivery {
            id: DeliveryId::from(id),
            event_id: EventId::from("event-1"),
            event_type: "order.placed.v1".into(),
            handler: "projector".into(),
            key: None,
            sequence: None,
            status,
            lane: Lane::Ready,
            attempts: 1,
            max_attempts: None,
            available_at: at,
            lease_expires_at: (status == Status::Processing).then_some(at),
            lease_token: None,
            lease_owner: None,
            due_at: status.is_unfinished().then_some(at),
            created_at: at,
            updated_at: at,
            completed_at: (status == Status::Completed).then_some(at),
            last_error: None,
            errors: Vec::new(),
            requeues: 0,
        }
    }

    fn hostile() -> Vec<Delivery> {
        let id = |n: u32| format!("019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e{n:02x}");
        vec![
            Delivery {
                attempts: 5,
                max_attempts: Some(5),
                key: Some("order-17".into()),
                last_error: Some(
                    "POST https://warehouse.example/orders: 503 Service Unavailable after 30 s\n  at handler.sh:12"
                        .into(),
                ),
                ..delivery(&id(1), Status::Dead, -180)
            },
            Delivery {
                handler: "確認メール送信".into(),
                key: Some("顧客-七".into()),
                last_error: Some("接続が拒否されました".into()),
                ..delivery(&id(2), Status::Pending, 5)
            },
            Delivery {
                handler: "👩‍👩‍👧‍👦-family".into(),
                key: Some("שלום".into()),
                event_type: "x\u{1b}]0;pwned\u{7}y".into(),
                ..delivery(&id(3), Status::Processing, -60)
            },
            Delivery {
                last_error: Some("\u{1b}[2J\u{202e}gpj.exe".into()),
                ..delivery(&id(4), Status::Completed, -7_200)
            },
        ]
    }

    fn drawn(width: Option<usize>) -> String {
        let times = Times { style: TimeStyle::Relative, now: NOW };
        let rows: Vec<Vec<Cell>> = hostile().iter().map(|delivery| delivery.cells(&times)).collect();
        let mut bytes = Vec::new();
        write_table(&mut bytes, Delivery::COLUMNS, &rows, Canvas { width, has_color: false }).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_table_for_40_columns() {
        insta::assert_snapshot!(drawn(Some(40)), @r#"
        ID
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e01
            dead  projector  died 3m ago
            try 5/5  order.placed.v1
            key order-17
            POST https://warehouse.example/orde…
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e02
            pending  確認メール送信  due in 5s
            try 1  order.placed.v1  key 顧客-七
            接続が拒否されました
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e03
            processing  👩‍👩‍👧‍👦-family
            expired 1m ago  try 1
            x\x1b]0;pwned\x07y  key שלום
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e04
            completed  projector  done 2h ago
            try 1  order.placed.v1
            \x1b[2J\u{202e}gpj.exe
        "#);
    }

    #[test]
    fn a_table_for_80_columns() {
        insta::assert_snapshot!(drawn(Some(80)), @r#"
        ID                                    STATUS      HANDLER         WHEN
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e01  dead        projector       died 3m ago
            try 5/5  order.placed.v1  key order-17
            POST https://warehouse.example/orders: 503 Service Unavailable after 30 s\n…
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e02  pending     確認メール送信  due in 5s
            try 1  order.placed.v1  key 顧客-七  接続が拒否されました
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e03  processing  👩‍👩‍👧‍👦-family       expired 1m ago
            try 1  x\x1b]0;pwned\x07y  key שלום
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e04  completed   projector       done 2h ago
            try 1  order.placed.v1  \x1b[2J\u{202e}gpj.exe
        "#);
    }

    #[test]
    fn a_table_for_200_columns() {
        insta::assert_snapshot!(drawn(Some(200)), @r#"
        ID                                    STATUS      HANDLER         WHEN            TRY  TYPE                KEY       ERROR
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e01  dead        projector       died 3m ago     5/5  order.placed.v1     order-17  POST https://warehouse.example/orders: 503 Service Unavailable after 30 s\n  at ha…
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e02  pending     確認メール送信  due in 5s         1  order.placed.v1     顧客-七   接続が拒否されました
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e03  processing  👩‍👩‍👧‍👦-family       expired 1m ago    1  x\x1b]0;pwned\x07y  שלום
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e04  completed   projector       done 2h ago       1  order.placed.v1               \x1b[2J\u{202e}gpj.exe
        "#);
    }

    #[test]
    fn a_table_for_a_pipe() {
        insta::assert_snapshot!(drawn(None), @r#"
        ID                                    STATUS      HANDLER         WHEN            TRY  TYPE                KEY       ERROR
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e01  dead        projector       died 3m ago     5/5  order.placed.v1     order-17  POST https://warehouse.example/orders: 503 Service Unavailable after 30 s\n  at handler.sh:12
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e02  pending     確認メール送信  due in 5s         1  order.placed.v1     顧客-七   接続が拒否されました
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e03  processing  👩‍👩‍👧‍👦-family       expired 1m ago    1  x\x1b]0;pwned\x07y  שלום
        019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e04  completed   projector       done 2h ago       1  order.placed.v1               \x1b[2J\u{202e}gpj.exe
        "#);
    }

    #[test]
    fn no_line_is_too_wide_or_harmful() {
        for columns in [40, 60, 80, 100, 120, 160, 200] {
            for line in drawn(Some(columns)).lines() {
                assert!(width(line) <= columns, "{columns}: {line}");
                assert!(!line.chars().any(is_harmful), "{line:?}");
            }
        }
    }

    #[test]
    fn columns_of_a_row_begin_at_the_same_place() {
        let table = drawn(Some(200));
        let mut lines = table.lines();
        let head = lines.next().unwrap();
        let place = |line: &str, text: &str| line.find(text).map(|at| width(&line[..at]));
        let expected = place(head, "WHEN");
        for (line, word) in lines.zip(["died", "due", "expired", "done"]) {
            assert_eq!(place(line, word), expected, "{line}");
        }
    }

    #[test]
    fn csv_has_a_value_for_every_field() {
        for delivery in hostile() {
            assert_eq!(delivery.values().len(), Delivery::FIELDS.len());
        }
    }

    #[test]
    fn csv_fields_are_named_like_the_json() {
        let full = Delivery {
            key: Some("k".into()),
            sequence: Some(1),
            max_attempts: Some(1),
            lease_token: Some("t".into()),
            lease_owner: Some("o".into()),
            lease_expires_at: Some(NOW),
            completed_at: Some(NOW),
            last_error: Some("e".into()),
            requeues: 1,
            ..delivery("d", Status::Pending, 0)
        };
        let json = serde_json::to_value(full).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, Delivery::FIELDS);
    }
}
