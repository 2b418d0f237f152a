use latchgate_core::{App, Key};
use latchgate_node::store::Page;

use crate::worlds::{World, at, new, of_app, state};

pub async fn a_listing_continues_after_the_previous_page(world: &World) {
    let mut keys: Vec<String> = (0..23).map(|number| format!("p/{number:02}")).collect();
    keys.push("o".to_owned());
    keys.push("q".to_owned());
    world.write_all(&keys.iter().map(|key| at(key)).collect::<Vec<_>>()).await;

    let mut listed = Vec::new();
    let mut after: Option<Key> = None;
    loop {
        let page: Page = world.store.list(&App::default(), "p/", after.as_ref(), 5).await.unwrap();
        assert!(page.len() <= 5);
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        listed.extend(page.into_iter().map(|(key, state)| (key.as_str().to_owned(), state)));
    }
    let expected: Vec<_> = keys[..23].iter().map(|key| (key.clone(), Some(state(1)))).collect();
    assert_eq!(listed, expected);
}

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
