//! Messages between nodes by publish and subscribe.

use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::RedisResult;
use tokio::time::timeout;

use super::link::Link;

/// The messages of a channel, on a connection of their own, until that ends or the link leads to another server: one that hangs does not end
/// its connections.
pub(in crate::store) async fn subscribe(
    link: Link,
    channel: String,
    time_out: Duration,
) -> RedisResult<impl Stream<Item = Vec<u8>> + Send> {
    let mut server = link.server();
    let subscribing = async {
        let (client, _) = link.target().reach(time_out).await?;
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(&channel).await?;
        let messages = subscription.into_on_message().map(|message| message.get_payload_bytes().to_vec());
        Ok(messages.take_until(async move { server.changed().await }))
    };
    let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(time_out, subscribing).await.unwrap_or_else(timed_out)
}
