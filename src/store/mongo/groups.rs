//! Groups of errors: whether a delivery belongs to one follows from a text that no query can fold. So what the other
//! conditions select is read, with no more of it than is needed, and looked at here.

use std::collections::HashSet;

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::documents::read_delivery;
use super::error::classify;
use super::{ALL_AT_ONCE, MongoStore, filter};
use crate::model::{DeliveryId, Filter, Selection};
use crate::store::{ErrorKind, Result};

/// How many deliveries are selected, by this index. One that cannot be understood belongs to no group.
pub(super) async fn count(store: &MongoStore, selection: &Selection, index: &str) -> Result<u64> {
    let hint = Hint::Name(index.to_owned());
    let members = members(store, filter::selection(selection), hint, &selection.filter);
    let mut count = 0;
    let mut each = std::pin::pin!(members.await?);
    while each.try_next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Those of `ids` that belong to the filter's groups, in the order given.
pub(super) async fn among(
    store: &MongoStore,
    ids: &[DeliveryId],
    filter: &Filter,
) -> Result<Vec<DeliveryId>> {
    let named: Vec<&str> = ids.iter().map(DeliveryId::as_str).collect();
    let named = doc! { "_id": { "$in": named } };
    let members = members(store, named, Hint::Keys(doc! { "_id": 1 }), filter).await?;
    let members: HashSet<DeliveryId> = members.try_collect().await?;
    Ok(ids.iter().filter(|id| members.contains(id)).cloned().collect())
}

async fn members(
    store: &MongoStore,
    condition: Document,
    hint: Hint,
    filter: &Filter,
) -> Result<impl futures_util::Stream<Item = Result<DeliveryId>>> {
    let failed = |error| classify("looking for a group of errors", error);
    let telling = doc! { "eventId": 1, "handler": 1, "status": 1, "lastError": 1 };
    let deliveries = store.deliveries();
    let find = deliveries.find(condition).projection(telling).hint(hint).batch_size(ALL_AT_ONCE);
    let cursor = find.await.map_err(failed)?;
    Ok(cursor.map_err(failed).try_filter_map(async |document: RawDocumentBuf| {
        match read_delivery(&document) {
            Ok(delivery) => Ok(filter.matches_group(&delivery).then_some(delivery.id)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }))
}
