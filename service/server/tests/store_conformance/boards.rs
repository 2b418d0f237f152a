use std::sync::Arc;

use futures::future::join_all;
use futures::poll;
use latchgate::store::Board;
use latchgate_core::App;

use crate::worlds::{FOREVER, World, at, state};

impl World {
    async fn board(&self) -> (u64, String) {
        let Board { version, text, .. } = self.store.board().await.unwrap();
        (version, text)
    }

    async fn write_board(&self, expected: u64, text: &str) -> Option<u64> {
        self.store.write_board(expected, text).await.unwrap()
    }
}

pub async fn a_board_that_was_never_written_is_empty_and_has_no_version(world: &World) {
    assert_eq!(world.board().await, (0, String::new()));
}

pub async fn a_board_tells_the_stores_clock(world: &World) {
    for expected_text in ["", "text"] {
        let before = world.now().await;
        let board = world.store.board().await.unwrap();
        let after = world.now().await;
        assert!(before <= board.now && board.now <= after, "{before:?}, {:?}, {after:?}", board.now);
        assert_eq!(board.text, expected_text);
        world.write_board(board.version, "text").await.unwrap();
    }
}

pub async fn a_board_is_read_byte_for_byte_by_who_comes_later_too(world: &World) {
    let part = "it's \"so\", \\ {é} 🔒\u{1}\r\n\t%s $1 ?1 null ";
    let texts = [part.repeat(60 * 1_024 / part.len() + 1), " ".to_owned(), String::new(), "0".to_owned()];
    assert!(texts[0].len() > 60 * 1_024);
    let mut version = 0;
    for text in &texts {
        version = world.write_board(version, text).await.unwrap();
        let other = world.beside().await;
        for world in [world, &other] {
            assert_eq!(world.board().await, (version, text.clone()));
        }
        version = other.write_board(version, "theirs").await.unwrap();
        assert_eq!(world.board().await, (version, "theirs".to_owned()));
    }
}

pub async fn a_stale_write_of_a_board_changes_nothing_and_says_so(world: &World) {
    for unknown in [1, 1 << 52, u64::MAX] {
        assert_eq!(world.write_board(unknown, "never").await, None);
        assert_eq!(world.board().await, (0, String::new()));
    }
    let first = world.write_board(0, "first").await.unwrap();
    let second = world.write_board(first, "second").await.unwrap();
    let other = world.beside().await;
    for stale in [0, first, second ^ 1, second + 1, u64::MAX] {
        for world in [world, &other] {
            assert_eq!(world.write_board(stale, "never").await, None, "{stale} for {second}");
            assert_eq!(world.board().await, (second, "second".to_owned()));
        }
    }
}

pub async fn of_racing_writes_of_a_board_exactly_one_wins(world: &World) {
    const RACERS: usize = 32;
    let worlds = [world.again(), world.beside().await];
    let mut version = 0;
    for round in 0..5 {
        let text_of = |racer: usize| format!("{racer} in round {round}");
        let racer = |racer: usize| {
            let (store, text) = (Arc::clone(&worlds[racer % 2].store), text_of(racer));
            tokio::spawn(async move { store.write_board(version, &text).await.unwrap() })
        };
        let results = join_all((0..RACERS).map(racer)).await;
        let winners: Vec<(usize, u64)> =
            (0..RACERS).zip(results).filter_map(|(racer, result)| Some((racer, result.unwrap()?))).collect();
        let [(winner, made)] = winners[..] else { panic!("{} won", winners.len()) };
        for world in &worlds {
            assert_eq!(world.board().await, (made, text_of(winner)));
        }
        version = made;
    }
}

pub async fn a_version_of_a_board_never_comes_back(world: &World) {
    let mut versions = vec![0];
    for _ in 0..20 {
        let made = world.write_board(versions[versions.len() - 1], "the same").await.unwrap();
        assert!(!versions.contains(&made), "{made} after {versions:?}");
        assert!(made < 1 << 53, "exact in a JSON number");
        versions.push(made);
    }
}

pub async fn a_write_of_a_board_dropped_half_way_leaves_it_usable(world: &World) {
    for polls in 0..40 {
        let (expected, before) = world.board().await;
        let dropped = format!("dropped after {polls}");
        let mut write = world.store.write_board(expected, &dropped);
        for _ in 0..polls {
            if poll!(&mut write).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(write);
        let text = format!("written after {polls}");
        loop {
            // It may be made while this looks, but only once.
            let (version, shown) = world.board().await;
            assert!(shown == before || shown == dropped, "{shown}");
            if let Some(made) = world.write_board(version, &text).await {
                assert_eq!(world.board().await, (made, text));
                break;
            }
        }
    }
}

pub async fn a_board_is_no_state(world: &World) {
    let version = world.write_board(0, "text").await.unwrap();
    assert_eq!(world.keys("").await, Vec::<String>::new());
    world.write(&at("board"), state(1), FOREVER).await;
    world.store.collect(None, 100).await.unwrap();
    assert_eq!(world.keys("").await, ["board"]);
    assert_eq!(world.store.list(&App::default(), "board", None, 10).await.unwrap().len(), 1);
    assert_eq!(world.board().await, (version, "text".to_owned()));
}
