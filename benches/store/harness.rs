//! How things are measured: the server, how much is repeated, clocks, medians.

use std::future::Future;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mongodb::Client;
use mongodb::bson::doc;

use crate::rows::Row;

/// The server, and how much is to be measured on it.
pub struct Lab {
    pub client: Client,
    /// Fewer repetitions, less data, and only the rows with a bound.
    pub is_quick: bool,
    names: Vec<String>,
    /// What the names of all databases of this run begin with.
    prefix: String,
}

impl Lab {
    pub async fn open(uri: &str, is_quick: bool, names: Vec<String>) -> Result<Self> {
        let client = Client::with_uri_str(uri).await.context("the URI of the server cannot be used")?;
        client
            .database("admin")
            .run_command(doc! { "ping": 1 })
            .await
            .context("the server does not answer")?;
        let prefix = format!("relayctl_bench_{}_", std::process::id());
        Ok(Lab { client, is_quick, names, prefix })
    }

    /// Whether a row was asked for. A quick run leaves out rows without a bound, unless they are named in full.
    pub fn wants(&self, name: &str) -> bool {
        let row = crate::rows::row(name);
        let is_named = self.names.iter().any(|wanted| name.starts_with(wanted.as_str()));
        let is_named_in_full = self.names.iter().any(|wanted| name == wanted);
        let is_bounded = row.is_some_and(|row| row.bound.is_some());
        (self.names.is_empty() || is_named) && (is_bounded || !self.is_quick || is_named_in_full)
    }

    pub fn wants_any(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| self.wants(row.name))
    }

    /// One of two sizes.
    pub fn size<T>(&self, quick: T, full: T) -> T {
        if self.is_quick { quick } else { full }
    }

    pub fn database_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Drops all databases of this run.
    pub async fn clear(&self) -> Result<()> {
        for name in self.client.list_database_names().await? {
            if name.starts_with(&self.prefix) {
                self.client.database(&name).drop().await?;
            }
        }
        Ok(())
    }

    pub async fn close(self) {
        self.client.shutdown().immediate(true).await;
    }
}

/// A line on stderr about what is going on.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The load of the machine over the last minute: runnable tasks on average.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// How long `work` takes, and what it returns.
pub async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(Duration, T)> {
    let began = Instant::now();
    let result = work.await?;
    Ok((began.elapsed(), result))
}

/// Figures of one kind: milliseconds, or rates per second.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub fn add_time(&mut self, time: Duration) {
        self.add(time.as_secs_f64() * 1_000.0);
    }

    pub fn extend(&mut self, more: Samples) {
        self.0.extend(more.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// 0 when there are none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Shows work that is done now and then, which a median hides. 0 when there are none.
    pub fn mean(&self) -> f64 {
        self.sum() / self.0.len().max(1) as f64
    }

    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// 0 when there are none.
    pub fn largest(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }
}

/// Things per second.
pub fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
