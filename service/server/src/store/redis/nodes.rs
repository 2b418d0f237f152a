//! What the nodes say of themselves, in a hash.

use latchgate_core::lock::NodeId;

use super::scripts::{MEET, read};
use crate::store::{NODE_GONE_MS, NodeEntry, StoreError};

impl super::Shared {
    pub(super) async fn meet(&self, node: &NodeId, says: &str) -> Result<Vec<NodeEntry>, StoreError> {
        let arguments = [node.as_str().to_owned(), says.to_owned(), NODE_GONE_MS.to_string()];
        let answer = self.link.run(&MEET, &[self.layout.nodes()], &arguments).await;
        let entries: Vec<(String, String, u64)> =
            read(answer.map_err(|failed| failed.of_read())?).map_err(StoreError::of_reading)?;
        Ok(entries.into_iter().map(|(node, says, age_ms)| NodeEntry { node, says, age_ms }).collect())
    }
}
