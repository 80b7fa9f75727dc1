//! From a URL to a store.

use std::sync::Arc;
use std::time::Duration;

use super::mongo::{MongoOptions, MongoStore};
use super::{ErrorKind, Result, Store, StoreError};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The database; the one that the URL names when absent.
    pub database: Option<String>,
    /// What the names of the collections begin with.
    pub prefix: String,
    /// How long to wait for the first answer.
    pub connect_timeout: Duration,
    /// How long later calls wait for a server to be found; a worker wants more than a failover takes.
    pub patience: Duration,
}

/// Opens the store at `url`, and makes sure that it answers and can do transactions.
///
/// # Errors
/// `Invalid` for a URL that cannot be read, `Unsupported` for a scheme that no backend knows, `Unavailable` when there is
/// no answer within the connect timeout or the user is refused, `Misconfigured` for a standalone server.
pub async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn Store>> {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("mongodb" | "mongodb+srv") => {
            let mongo = MongoOptions {
                database: options.database.clone(),
                prefix: options.prefix.clone(),
                connect_timeout: options.connect_timeout,
                patience: options.patience,
            };
            Ok(Arc::new(MongoStore::connect(url, mongo).await?))
        }
        Some(scheme) => Err(unsupported(format!("there is no store for URLs of the scheme `{scheme}`"))),
        None => Err(unsupported("the store's URL has no scheme, such as mongodb://".to_owned())),
    }
}

fn unsupported(message: String) -> StoreError {
    StoreError::new(ErrorKind::Unsupported, message)
        .with_hint("write mongodb://HOST:PORT/DATABASE?replicaSet=NAME, or mongodb+srv://HOST/DATABASE")
}
