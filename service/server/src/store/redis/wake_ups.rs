//! Messages between nodes by publish and subscribe.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use latchgate_core::lock::NodeId;
use latchgate_core::{Address, App, Key};
use redis::aio::PubSubStream;
use redis::{RedisError, RedisResult};
use tokio::sync::mpsc;

use super::url::Target;
use crate::store::{WAKE_UPS_MAX, WakeUp};

/// How many keys one message has at most.
const KEYS_MAX: usize = 64;
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// Packs addresses by node into messages: JSON arrays of `[app, key]`.
pub(super) fn pack(wake_ups: &[(NodeId, Address)]) -> Vec<(&NodeId, String)> {
    let mut by_node: BTreeMap<&NodeId, Vec<(&App, &Key)>> = BTreeMap::new();
    for (node, Address { app, key }) in wake_ups {
        by_node.entry(node).or_default().push((app, key));
    }
    let mut messages = Vec::new();
    for (node, mut keys) in by_node {
        keys.sort_unstable();
        keys.dedup();
        messages.extend(keys.chunks(KEYS_MAX).map(|keys| (node, serde_json::json!(keys).to_string())));
    }
    messages
}

pub(super) fn unpack(payload: &[u8]) -> Vec<WakeUp> {
    let Ok(keys) = serde_json::from_slice::<Vec<(App, Key)>>(payload) else {
        // Another version may have sent it. To look at every key is safe.
        return vec![WakeUp::All];
    };
    keys.into_iter().map(|(app, key)| WakeUp::Key(Address { app, key })).collect()
}

/// Listens on a separate connection until the receiver is dropped. After every interruption, in which messages may have been
/// lost, it sends `again`.
///
/// # Errors
/// When the first connection fails. Later ones are opened again until one succeeds.
pub(in crate::store) async fn listen<T: Send + 'static>(
    target: Target,
    channel: String,
    time_out: Duration,
    read: fn(&[u8]) -> Vec<T>,
    again: fn() -> T,
) -> Result<mpsc::Receiver<T>, RedisError> {
    let mut messages = Some(subscribe(&target, &channel, time_out).await?);
    let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
    tokio::spawn(async move {
        while !sender.is_closed() {
            if let Some(messages) = messages.take() {
                forward(messages, read, &sender).await;
            }
            match subscribe(&target, &channel, time_out).await {
                Ok(fresh) => {
                    messages = Some(fresh);
                    let _ = sender.try_send(again());
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot listen for wake-ups; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(RECONNECT_PAUSE) => {}
                        () = sender.closed() => {}
                    }
                }
            }
        }
    });
    Ok(receiver)
}

async fn subscribe(target: &Target, channel: &str, time_out: Duration) -> RedisResult<PubSubStream> {
    let subscribing = async {
        let client = target.client(time_out).await?;
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription.into_on_message())
    };
    let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    tokio::time::timeout(time_out, subscribing).await.unwrap_or_else(timed_out)
}

/// Passes messages on until the connection or the receiver is gone.
async fn forward<T>(mut messages: PubSubStream, read: fn(&[u8]) -> Vec<T>, sender: &mpsc::Sender<T>) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            message = messages.next() => {
                let Some(message) = message else { return };
                for wake_up in read(message.get_payload_bytes()) {
                    // If the channel is full, the wake-up is lost. Waiters also look again on a timer.
                    let _ = sender.try_send(wake_up);
                }
            }
        }
    }
}
