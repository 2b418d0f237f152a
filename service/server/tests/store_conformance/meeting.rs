//! The list of nodes.

use latchgate_core::lock::NodeId;

use crate::worlds::World;

pub async fn nodes_that_meet_see_what_each_has_said_last(world: &World) {
    let (one, other) = (NodeId::new("one"), NodeId::new("other"));
    let said = |entries: Vec<latchgate::store::NodeEntry>| {
        let mut said: Vec<(String, String)> = entries.into_iter().map(|entry| (entry.node, entry.says)).collect();
        said.sort();
        said
    };
    let is = |node: &str, says: &str| (node.to_owned(), says.to_owned());
    assert_eq!(said(world.store.meet(&one, "hello").await.unwrap()), [is("one", "hello")]);
    assert_eq!(
        said(world.store.meet(&other, "{\"é 1\n\": 2}").await.unwrap()),
        [is("one", "hello"), is("other", "{\"é 1\n\": 2}")]
    );
    assert_eq!(
        said(world.store.meet(&one, "again").await.unwrap()),
        [is("one", "again"), is("other", "{\"é 1\n\": 2}")]
    );
}
