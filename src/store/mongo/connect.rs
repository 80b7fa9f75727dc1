//! From a URL to a client that is known to answer and to have transactions.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::error::ErrorKind as DriverKind;
use mongodb::options::{
    ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, ServerAddress, WriteConcern,
};
use mongodb::{Client, Database};

use super::MongoOptions;
use super::error::{Cause, classify, standalone};
use super::names::{check_database, check_prefix};
use crate::model::Timestamp;
use crate::store::{ErrorKind, Result, StoreError};

/// Options that Node services have in their URL and that no other driver reads.
const NODE_ONLY: &[&str] = &[
    "usenewurlparser",
    "useunifiedtopology",
    "usecreateindex",
    "usefindandmodify",
    "timeoutms",
    "sockettimeoutms",
    "socketkeepalive",
    "keepalive",
    "autoreconnect",
    "poolsize",
    "ignoreundefined",
    "promotevalues",
];

/// A client whose server has answered.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) hosts: String,
    pub(super) database: String,
}

/// Connects, asks the server what it is, and names the database.
pub(super) async fn connect(url: &str, options: &MongoOptions) -> Result<Connected> {
    check_prefix(&options.prefix)?;
    let patience = options.connect_timeout;
    let mut parsed = within(patience, ClientOptions::parse(url)).await.map_err(|error| match error {
        Some(error) => refuse_url(url, &error),
        None => not_resolved(url, patience),
    })?;
    let database = database_name(&parsed, options)?;
    let hosts = parsed.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    harden(&mut parsed, options);
    let client = Client::with_options(parsed.clone()).map_err(|error| refuse_url(url, &error))?;
    match within(patience, hello(&client)).await {
        Ok(reply) => has_transactions(&reply).map(|()| Connected { client, hosts, database }),
        Err(error) => {
            let reason = error.map(|error| classify("connecting", error));
            client.shutdown().immediate(true).await;
            Err(explain_silence(parsed, &hosts, patience, reason).await)
        }
    }
}

/// Overrides whatever the URL says about durability and freshness; see "Durability" on [`Store`](crate::store::Store).
fn harden(parsed: &mut ClientOptions, options: &MongoOptions) {
    parsed.write_concern = Some(WriteConcern::majority());
    parsed.read_concern = Some(ReadConcern::majority());
    parsed.selection_criteria = Some(primary());
    parsed.retry_writes = Some(true);
    parsed.retry_reads = Some(true);
    parsed.app_name.get_or_insert_with(|| "relayctl".to_owned());
    parsed.server_selection_timeout = Some(options.patience.max(options.connect_timeout));
    let connect_timeout = parsed.connect_timeout.unwrap_or(options.connect_timeout);
    parsed.connect_timeout = Some(connect_timeout.min(options.connect_timeout));
}

/// Reads go to the primary.
pub(super) fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// `Err(None)` when the time ran out.
async fn within<T>(
    limit: Duration,
    call: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> Result<T, Option<mongodb::error::Error>> {
    match tokio::time::timeout(limit, call.into_future()).await {
        Ok(result) => result.map_err(Some),
        Err(_) => Err(None),
    }
}

async fn hello(client: &Client) -> mongodb::error::Result<Document> {
    // A command that needs the user's rights makes sure that they are looked at.
    client.database("admin").run_command(doc! { "hello": 1 }).selection_criteria(primary()).await
}

/// Makes sure that the deployment behind `database` can do transactions.
pub(super) async fn check_deployment(database: &Database) -> Result<()> {
    let reply = hello(database.client()).await.map_err(|error| classify("connecting", error))?;
    has_transactions(&reply)
}

/// What time it is at the primary, or at the router of a sharded cluster. A server that was the primary a moment ago may still
/// be asked: its clock counts no more.
pub(super) async fn server_time(database: &Database) -> Result<Timestamp> {
    time_of(&hello(database.client()).await.map_err(|error| classify("asking for the time", error))?)
}

fn time_of(hello: &Document) -> Result<Timestamp> {
    if !hello.get_bool("isWritablePrimary").unwrap_or(false) {
        let message = "asking for the time failed: the server is not the primary any more";
        return Err(StoreError::new(ErrorKind::Unavailable, message));
    }
    match hello.get_datetime("localTime") {
        Ok(time) => Ok(Timestamp::from_millis(time.timestamp_millis())),
        Err(_) => {
            let message = "asking for the time failed: the server's answer to `hello` has no localTime";
            Err(StoreError::new(ErrorKind::Misconfigured, message))
        }
    }
}

fn has_transactions(hello: &Document) -> Result<()> {
    let is_replica_set = hello.contains_key("setName");
    let is_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
    if is_replica_set || is_router { Ok(()) } else { Err(standalone()) }
}

fn database_name(parsed: &ClientOptions, options: &MongoOptions) -> Result<String> {
    let name = options.database.clone().or_else(|| parsed.default_database.clone()).ok_or_else(|| {
        StoreError::new(ErrorKind::Invalid, "no database is named").with_hint(
            "name it in the store's URL (mongodb://HOST/DATABASE), with --database, or in RELAYCTL_DATABASE",
        )
    })?;
    check_database(&name)?;
    Ok(name)
}

/// Why there was no usable answer. A server that is silent as part of a set may well answer when asked directly, and
/// then it can say why: it is standalone, or belongs to a set of another name.
async fn explain_silence(
    parsed: ClientOptions,
    hosts: &str,
    patience: Duration,
    reason: Option<StoreError>,
) -> StoreError {
    match reason {
        Some(reason) if is_about_the_user(&reason) => reason,
        _ => match ask_directly(&parsed, patience).await {
            Some(reply) if has_transactions(&reply).is_err() => standalone(),
            Some(reply) => wrong_set(&parsed, &reply, hosts),
            None => no_answer(&parsed, hosts, patience, reason).await,
        },
    }
}

/// The driver's own message lists every server with its whole history; a knock at the port says more in fewer words.
async fn no_answer(
    parsed: &ClientOptions,
    hosts: &str,
    patience: Duration,
    reason: Option<StoreError>,
) -> StoreError {
    let knocked = match parsed.hosts.first() {
        Some(ServerAddress::Tcp { host, port }) => knock(host, port.unwrap_or(27_017)).await,
        _ => "nothing answers",
    };
    let message = format!("no answer from {hosts} within {patience:?}: {knocked}");
    let error = StoreError::new(ErrorKind::Unavailable, message).with_hint(
        "check that the server runs, that host and port are right, and that nothing blocks the way",
    );
    match reason.as_ref().and_then(Cause::of) {
        Some(cause) => error.with_source(Cause(cause.clone())),
        None => error,
    }
}

/// What a plain connection to the port meets.
async fn knock(host: &str, port: u16) -> &'static str {
    let attempt = tokio::net::TcpStream::connect((host, port));
    match tokio::time::timeout(Duration::from_secs(1), attempt).await {
        Ok(Ok(_)) => {
            "something listens there, but does not answer as MongoDB does; does it want TLS (tls=true)?"
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            "the connection was refused, so nothing listens at that port"
        }
        Ok(Err(error)) if error.raw_os_error().is_none() => "no name server knows that host",
        Ok(Err(_)) => "the host cannot be reached",
        Err(_) => "nothing came back, not even a refusal",
    }
}

fn is_about_the_user(error: &StoreError) -> bool {
    Cause::of(error).is_some_and(|cause| match cause.kind.as_ref() {
        DriverKind::Authentication { .. } => true,
        DriverKind::Command(command) => command.code == 18,
        _ => false,
    })
}

async fn ask_directly(parsed: &ClientOptions, patience: Duration) -> Option<Document> {
    let mut direct = parsed.clone();
    direct.hosts.truncate(1);
    direct.repl_set_name = None;
    direct.direct_connection = Some(true);
    direct.credential = None;
    let client = Client::with_options(direct).ok()?;
    let reply = within(patience.min(Duration::from_secs(1)), hello(&client)).await.ok();
    client.shutdown().immediate(true).await;
    reply
}

fn wrong_set(parsed: &ClientOptions, hello: &Document, hosts: &str) -> StoreError {
    let actual = hello.get_str("setName").unwrap_or("?");
    match parsed.repl_set_name.as_deref() {
        Some(wanted) if wanted != actual => StoreError::new(
            ErrorKind::Misconfigured,
            format!("{hosts} belongs to the replica set `{actual}`, not to `{wanted}`"),
        )
        .with_hint(format!("write replicaSet={actual} in the store's URL")),
        _ => StoreError::new(
            ErrorKind::Unavailable,
            format!("the replica set `{actual}` at {hosts} has no primary"),
        )
        .with_hint(
            "`rs.status()` in mongosh shows its members; after a failure an election takes some seconds",
        ),
    }
}

fn not_resolved(url: &str, patience: Duration) -> StoreError {
    let host = url.rsplit('@').next().unwrap_or_default().split(['/', '?']).next().unwrap_or_default();
    let host = host.trim_start_matches("mongodb+srv:").trim_start_matches('/');
    StoreError::new(ErrorKind::Unavailable, format!("the name {host} was not resolved within {patience:?}"))
        .with_hint("check the host in the store's URL, and the name server")
}

/// A URL that the driver refuses. Neither the URL nor the driver's text is repeated: both can hold the password.
fn refuse_url(url: &str, error: &mongodb::error::Error) -> StoreError {
    if matches!(error.kind.as_ref(), DriverKind::DnsResolve { .. }) {
        return classify("looking up the store's host", error.clone()).with_hint(
            "check the host in the store's URL; mongodb+srv:// needs SRV records, mongodb:// does not",
        );
    }
    let refused = StoreError::new(ErrorKind::Invalid, "the store's URL cannot be read");
    let options = url.rsplit_once('?').map_or("", |(_, options)| options);
    let names = options.split('&').filter_map(|option| option.split('=').next());
    let node_only: Vec<_> =
        names.filter(|name| NODE_ONLY.contains(&name.to_ascii_lowercase().as_str())).collect();
    if node_only.is_empty() {
        refused.with_hint(
            "write mongodb://USER:PASSWORD@HOST:PORT/DATABASE?replicaSet=NAME, with special characters in user and \
             password percent-encoded",
        )
    } else {
        refused.with_hint(format!("take out what only Node's driver understands: {}", node_only.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(url: &str) -> StoreError {
        let options = MongoOptions { database: None, ..MongoOptions::default() };
        connect(url, &options).await.expect_err("this URL is refused")
    }

    #[tokio::test]
    async fn a_malformed_url_is_refused_without_repeating_it() {
        for url in [
            "mongodb://user:s3cret@host:port:x/db",
            "mongodb://user:s3cret@/db",
            "mongodb://user:s3c/ret@host/db",
            "mongodb://user:s3cret@host/db?w=-1",
        ] {
            let error = refusal(url).await;
            let shown = format!("{error} {error:?} {:?}", error.hint());
            assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
            assert!(!shown.contains("s3c"), "{shown}");
        }
    }

    #[test]
    fn the_time_is_that_of_the_primary_alone() {
        let hello = |is_primary: bool| {
            let time = mongodb::bson::DateTime::from_millis(1_764_528_000_120);
            doc! { "isWritablePrimary": is_primary, "localTime": time }
        };
        assert_eq!(time_of(&hello(true)).unwrap(), Timestamp::from_millis(1_764_528_000_120));
        assert_eq!(time_of(&hello(false)).unwrap_err().kind(), ErrorKind::Unavailable);
        let silent = time_of(&doc! { "isWritablePrimary": true }).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::Misconfigured);
    }

    #[tokio::test]
    async fn options_of_nodes_driver_are_named() {
        let error =
            refusal("mongodb://u:s3cret@localhost/db?useNewUrlParser=true&w=majority&timeoutMS=5").await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.hint().unwrap().ends_with(": useNewUrlParser, timeoutMS"), "{:?}", error.hint());
    }

    #[tokio::test]
    async fn a_database_has_to_be_named_by_a_plain_name() {
        assert!(refusal("mongodb://localhost:1").await.to_string().contains("no database"));
        let options = MongoOptions { database: Some("a b".into()), ..MongoOptions::default() };
        let error = connect("mongodb://localhost:1", &options).await.expect_err("this name is refused");
        assert!(error.to_string().contains("`a b`"), "{error}");
    }
}
