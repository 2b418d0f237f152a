use latchgate_node::store::{Stored, Version};

use crate::worlds::{EPOCH, FOREVER, World, at, state};

pub async fn an_absent_key_has_the_default_state_and_no_version(world: &World) {
    let stored = world.load(&at("absent")).await;
    assert_eq!(stored, Stored::default());
    assert_eq!(stored.version, Version::ABSENT);
}

pub async fn states_are_loaded_as_often_and_in_the_order_as_requested(world: &World) {
    let (a, b, c) = (at("a"), at("b"), at("c"));
    world.write(&a, state(1), FOREVER).await;
    world.write(&c, state(3), FOREVER).await;
    let loaded = world.locks().load(EPOCH, &[c.clone(), b.clone(), a, c, b]).await.unwrap();
    let states: Vec<_> = loaded.states.into_iter().map(|stored| stored.state).collect();
    assert_eq!(states, [state(3), Default::default(), state(1), state(3), Default::default()]);
}

pub async fn a_load_returns_the_clock_of_the_store(world: &World) {
    let before = world.now().await;
    let shown = world.locks().load(EPOCH, &[at("a")]).await.unwrap().now;
    let after = world.now().await;
    assert!(before <= shown && shown <= after, "{before:?}, {shown:?}, {after:?}");
}
