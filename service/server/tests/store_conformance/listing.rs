use latchgate_core::App;

use crate::worlds::{World, at, new, of_app, state};

/// The order of a dictionary would be different.
pub async fn a_prefix_is_no_pattern_and_keys_come_in_the_order_of_their_bytes(world: &World) {
    let mut keys = [
        "%", "%a", "a", "a%", "a%b", "a*b", "a[b]", "a\\", "a\\b", "a_", "a_b", "ab", "axb", "A", "é", "éa", "ê",
        "🔒1", "🔓1", "B", "b", "a b", "a-b", "a/b", "z", "Z", "\u{ffff}", "_", "1", "10", "2",
    ];
    world.write_all(&keys.map(at)).await;
    keys.sort_unstable();
    for prefix in ["", "%", "a%", "a*", "a[", "a\\", "a_", "a", "A", "_", "é", "🔒", "e", "a%b", "a%bc"] {
        let expected: Vec<&str> = keys.into_iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(world.keys(prefix).await, expected, "{prefix:?}");
    }
    let page = world.store.list(&App::default(), "a%", None, 1).await.unwrap();
    assert_eq!(page, [(at("a%").key, Some(state(1)))]);
}

pub async fn apps_with_keys_are_found_one_after_the_other(world: &World) {
    assert_eq!(world.store.app_after("").await.unwrap(), None);
    let mut apps = ["b", "a", "ab", "a b", "a/", "A", "é", "🔒", &"x".repeat(64)];
    let states = apps.iter().flat_map(|app| ["\u{10ffff}", "!"].map(|key| new(&of_app(app, key), state(1))));
    world.commit(&states.collect::<Vec<_>>()).await;
    assert_eq!(world.keys("").await, [""; 0], "they are of other apps");
    apps.sort_unstable();
    let (mut found, mut after) = (Vec::new(), String::new());
    while let Some(app) = world.store.app_after(&after).await.unwrap() {
        found.push(app.clone());
        after = app;
    }
    assert_eq!(found, apps);
    // Also behind an app that has no keys.
    assert_eq!(world.store.app_after("c").await.unwrap().as_deref(), Some(apps[6]));
}
