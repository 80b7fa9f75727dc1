//! (being built)
use super::Result;
use std::time::Duration;
/// Options.
#[derive(Clone, Debug)]
pub struct MongoOptions {
    /// Database.
    pub database: Option<String>,
    /// Prefix.
    pub prefix: String,
    /// Timeout.
    pub connect_timeout: Duration,
}
/// Store.
#[derive(Debug)]
pub struct MongoStore;
/// Transaction.
#[derive(Debug)]
pub struct MongoTransaction;
impl MongoStore {
    /// Connects.
    pub async fn connect(_url: &str, _options: MongoOptions) -> Result<std::sync::Arc<dyn super::Store>> {
        unimplemented!()
    }
}
