//! Pausing a handler for the whole fleet, and resuming it.

use futures_util::StreamExt as _;

use crate::model::{Controls, Filter, ListQuery, Pause, Timestamp};
use crate::store::{Result, Store};

/// What a pause or a resumption did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseReport {
    /// Whether something changed, or would.
    pub changed: bool,
    /// The pause that held before.
    pub before: Option<Pause>,
    /// The pause that holds now, or would.
    pub now: Option<Pause>,
}

/// Pauses a handler. One that is paused already with the same end and reason stays as it is, so that a script can say it
/// again; otherwise its end, reason and author are replaced.
///
/// # Errors
/// Those of the store.
pub async fn pause(store: &dyn Store, pause: Pause, dry_run: bool) -> Result<PauseReport> {
    let before = holding(store, &pause.handler, pause.paused_at).await?;
    if let Some(before) = before.clone().filter(|before| is_same(before, &pause)) {
        return Ok(PauseReport { changed: false, before: Some(before.clone()), now: Some(before) });
    }
    let before = if dry_run { before } else { store.pause(&pause).await? };
    let paused_at = before.as_ref().map_or(pause.paused_at, |before| before.paused_at);
    Ok(PauseReport { changed: true, before, now: Some(Pause { paused_at, ..pause }) })
}

fn is_same(before: &Pause, pause: &Pause) -> bool {
    (before.paused_until, &before.reason) == (pause.paused_until, &pause.reason)
}

/// Ends the pause of a handler, if it is paused.
///
/// # Errors
/// Those of the store.
pub async fn resume(store: &dyn Store, handler: &str, now: Timestamp, dry_run: bool) -> Result<PauseReport> {
    let before = match dry_run {
        true => holding(store, handler, now).await?,
        false => store.resume(handler, now).await?,
    };
    Ok(PauseReport { changed: before.is_some(), before, now: None })
}

async fn holding(store: &dyn Store, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
    Ok(store.pauses(now).await?.into_iter().find(|pause| pause.handler == handler))
}

/// Everything that holds handlers up at `now`.
///
/// # Errors
/// Those of the store.
pub async fn controls(store: &dyn Store, now: Timestamp) -> Result<Controls> {
    Ok(Controls { pauses: store.pauses(now).await?, breakers: store.tripped_breakers(now).await? })
}

/// Whether there is any delivery of a handler: a pause of one that nobody ever published for may be a slip of the pen.
///
/// # Errors
/// Those of the store.
pub async fn is_known(store: &dyn Store, handler: &str) -> Result<bool> {
    let filter = Filter { handler: Some(handler.to_owned()), ..Filter::default() };
    let query = ListQuery { filter, limit: Some(1), ..ListQuery::default() };
    // One that cannot be understood is there all the same.
    Ok(store.list(&query).next().await.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn wanted(at: Timestamp, until: Option<Timestamp>) -> Pause {
        let (handler, by) = ("mailer".to_owned(), "ana@desk".to_owned());
        Pause { handler, paused_at: at, paused_until: until, reason: None, by }
    }

    #[tokio::test]
    async fn the_same_again_changes_nothing_and_another_end_does() {
        let store = MemoryStore::new();
        let first = pause(&store, wanted(NOW, None), false).await.unwrap();
        assert_eq!((first.changed, first.before), (true, None));
        let later = NOW.saturating_add(Duration::from_secs(5));
        let again = Pause { by: "bo@desk".into(), ..wanted(later, None) };
        let again = pause(&store, again, false).await.unwrap();
        assert_eq!((again.changed, again.now), (false, Some(wanted(NOW, None))));
        let end = later.saturating_add(Duration::from_secs(60));
        let longer = pause(&store, wanted(later, Some(end)), false).await.unwrap();
        assert_eq!((longer.changed, longer.before), (true, Some(wanted(NOW, None))));
        assert_eq!(longer.now, Some(wanted(NOW, Some(end))));
        assert_eq!(store.pauses(later).await.unwrap(), [wanted(NOW, Some(end))]);
    }

    #[tokio::test]
    async fn a_dry_run_says_the_same_and_changes_nothing() {
        let store = MemoryStore::new();
        assert!(pause(&store, wanted(NOW, None), true).await.unwrap().changed);
        assert_eq!(store.pauses(NOW).await.unwrap(), []);
        assert!(!resume(&store, "mailer", NOW, true).await.unwrap().changed);
        store.pause(&wanted(NOW, None)).await.unwrap();
        assert!(resume(&store, "mailer", NOW, true).await.unwrap().changed);
        assert_eq!(store.pauses(NOW).await.unwrap().len(), 1);
        assert!(resume(&store, "mailer", NOW, false).await.unwrap().changed);
        assert!(!resume(&store, "mailer", NOW, false).await.unwrap().changed);
    }
}
