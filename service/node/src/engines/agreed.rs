//! What all nodes of an engine set agree on: documents that each of its engines has.

use anyhow::Context as _;
use tokio::time::timeout;

use super::open::OPEN_TIMEOUT;
use super::pair::EngineSet;
use crate::store::documents::{self, StoredDocument};

impl EngineSet {
    /// What all nodes agree on under this name. It becomes `fresh` if that is given and there is nothing yet, and every engine that answers
    /// gets it.
    ///
    /// # Errors
    /// When it is not known.
    pub async fn agreed(&self, name: &str, fresh: Option<&str>) -> anyhow::Result<StoredDocument> {
        let used = match self.in_use() {
            Ok(used) => used,
            // A node that was started without an engine may be what an operator has to call. The other engine has what all agree on.
            Err(error) => {
                for other in self.others() {
                    let read = self.in_time(other.store.read_document(name, 0)).await;
                    if let Ok(stored @ StoredDocument { text: Some(_), .. }) = read {
                        return Ok(stored);
                    }
                }
                return Err(error.into());
            }
        };
        let stored = async {
            match fresh {
                Some(fresh) => documents::agreed(&*used.store, name, fresh).await,
                None => used.store.read_document(name, 0).await,
            }
        };
        let stored = timeout(OPEN_TIMEOUT, stored).await.context("the store does not answer")??;
        for other in self.others() {
            let brought = self.in_time(documents::bring(&*used.store, &*other.store, name, None)).await;
            if let Err(error) = brought {
                tracing::warn!(%error, engine = %other.name, name, "the engine was not given what the nodes agree on");
            }
        }
        Ok(stored)
    }
}
