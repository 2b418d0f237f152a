//! Ends of operations told from node to node by publish and subscribe.

use std::time::Duration;

use futures::StreamExt;
use latchgate_core::App;
use latchgate_core::gate::OperationAddress;
use redis::aio::PubSubStream;
use redis::{Client, RedisError};
use tokio::sync::mpsc;

use crate::store::WAKE_UPS_MAX;
use crate::store::gate::WakeUp;

const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn payload(address: &OperationAddress) -> String {
    serde_json::json!([address.app, address.id]).to_string()
}

/// # Errors
/// When the first connection fails; later ones are tried again and again until the receiver is dropped.
pub(super) async fn listen(
    client: Client,
    channel: String,
    timeout: Duration,
) -> Result<mpsc::Receiver<WakeUp>, RedisError> {
    let mut messages = Some(connect(&client, &channel, timeout).await?);
    let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
    tokio::spawn(async move {
        while !sender.is_closed() {
            if let Some(messages) = messages.take() {
                forward(messages, &sender).await;
            }
            match connect(&client, &channel, timeout).await {
                Ok(again) => {
                    messages = Some(again);
                    // Whatever was sent in between is lost.
                    let _ = sender.try_send(WakeUp::All);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot listen for ends of operations; trying again");
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

async fn connect(client: &Client, channel: &str, timeout: Duration) -> Result<PubSubStream, RedisError> {
    let subscribing = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription.into_on_message())
    };
    let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    tokio::time::timeout(timeout, subscribing).await.unwrap_or_else(timed_out)
}

/// Passes messages on until the connection or the receiver is gone.
async fn forward(mut messages: PubSubStream, sender: &mpsc::Sender<WakeUp>) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            message = messages.next() => {
                let Some(message) = message else { return };
                // A full channel misses it; whoever waits looks again on a timer all the same.
                let _ = sender.try_send(read(message.get_payload_bytes()));
            }
        }
    }
}

/// What is not ours to read: look at everything rather than at nothing.
fn read(payload: &[u8]) -> WakeUp {
    let parsed = serde_json::from_slice::<(App, _)>(payload);
    parsed.map_or(WakeUp::All, |(app, id)| WakeUp::Operation(OperationAddress { app, id }))
}
