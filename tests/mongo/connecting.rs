//! Servers that cannot be used: each is one clear error, soon, without a password in it.

use std::time::Duration;

use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{ErrorKind, StoreError};

use crate::fixture::{Server, uri};

async fn refusal(uri: &str) -> StoreError {
    let options = MongoOptions { database: Some("shop".into()), ..MongoOptions::default() };
    let limit = Duration::from_secs(7);
    let attempt =
        tokio::time::timeout(limit, MongoStore::connect(uri, options)).await.expect("an answer in time");
    let error = attempt.expect_err("this server is refused");
    let shown = format!("{error} {error:?} {:?}", error.hint());
    assert!(!shown.contains("s3cret") && !shown.contains("Pa55"), "{shown}");
    assert!(error.hint().is_some(), "{shown}");
    error
}

#[tokio::test]
async fn a_standalone_server_is_refused_however_it_is_addressed() {
    let server = Server::start("standalone", &["--standalone"]);
    let host = &server.hosts()[0];
    for uri in [
        format!("mongodb://{host}/"),
        format!("mongodb://{host}/?directConnection=true"),
        format!("mongodb://{host}/?replicaSet=rs0"),
    ] {
        let error = refusal(&uri).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{uri}: {error}");
        assert!(error.to_string().contains("standalone"), "{uri}: {error}");
        assert!(error.hint().unwrap().contains("rs.initiate()"), "{uri}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_named_as_such() {
    let server = Server::start("auth", &["--auth"]);
    let options = MongoOptions { database: Some("shop".into()), ..MongoOptions::default() };
    let store = MongoStore::connect(&server.uri, options).await.expect("the right password works");
    relayctl::store::Store::close(&store).await;
    let wrong = server.uri.replace("s3cret-Pa55", "s3cret-Pa55-wrong");
    let error = refusal(&wrong).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("refused the user or password"), "{error}");
}

#[tokio::test]
async fn a_dead_port_is_no_answer() {
    let error = refusal("mongodb://user:s3cret@127.0.0.1:1/?replicaSet=rs0").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1 within"), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_no_answer() {
    let error = refusal("mongodb://user:s3cret@no-such-host.invalid/").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no-such-host.invalid:27017 within"), "{error}");
    assert!(error.to_string().contains("no name server knows"), "{error}");
}

#[tokio::test]
async fn a_set_of_another_name_is_told() {
    let error = refusal(&uri().replace("replicaSet=rs0", "replicaSet=other")).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.hint().unwrap().contains("replicaSet=rs0"), "{error:?}");
}

/// A port where something else listens: the answer comes in time, and points at TLS.
#[tokio::test]
async fn a_server_that_is_not_mongodb_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = refusal(&format!("mongodb://user:s3cret@127.0.0.1:{port}/")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("tls=true"), "{error}");
}
