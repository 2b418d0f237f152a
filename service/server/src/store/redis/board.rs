//! The board: one string, changed by one compare-and-set script. In a cluster it is in the slot of its own key, and the
//! master of that decides. It may be lost with the server, as every state may.

use futures::future::try_join;

use super::Shared;
use super::layout::{decode_board, encode_board};
use super::scripts::{BOARD, read};
use crate::store::{Board, StoreError, Version};

/// The board, and then the clock of the same server.
pub(super) async fn load(shared: &Shared) -> Result<Board, StoreError> {
    let key = shared.layout.board();
    let mut get = redis::cmd("GET");
    get.arg(&key);
    let value = async { shared.servers.ask(&key, &get).await.map_err(|failed| failed.of_read()) };
    let (value, now) = try_join(value, shared.clock(&key)).await?;
    let value: Option<String> = read(value).map_err(StoreError::of_reading)?;
    let (version, text) = value.as_deref().map(decode_board).transpose()?.unwrap_or_default();
    Ok(Board { version, text: text.to_owned(), now })
}

pub(super) async fn write(shared: &Shared, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
    let version = Version::fresh().number();
    let arguments = [expected.to_string(), encode_board(version, text)];
    let answer = shared.servers.run(&BOARD, &[shared.layout.board()], &arguments).await;
    let is_made: bool = read(answer.map_err(|failed| failed.of_write())?)?;
    Ok(is_made.then_some(version))
}
