//! Messages between nodes by publish and subscribe.

use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::RedisResult;
use tokio::time::timeout;

use super::url::Target;

/// The messages of a channel, on a connection of their own, until that ends.
pub(in crate::store) async fn subscribe(
    target: Target,
    channel: String,
    time_out: Duration,
) -> RedisResult<impl Stream<Item = Vec<u8>> + Send> {
    let subscribing = async {
        let client = target.client(time_out).await?;
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(&channel).await?;
        Ok(subscription.into_on_message().map(|message| message.get_payload_bytes().to_vec()))
    };
    let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(time_out, subscribing).await.unwrap_or_else(timed_out)
}
