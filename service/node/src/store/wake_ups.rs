//! Messages between nodes, over channels of Postgres or Redis: which keys another node should look at, and which operations have ended.

use std::time::Duration;

use futures::{Stream, StreamExt};
use latchgate_core::lock::NodeId;
use latchgate_core::{Address, App, Key};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{WAKE_UPS_MAX, WakeUp};

/// A notification of Postgres must be shorter than 8 000 bytes.
const MESSAGE_MAX_BYTES: usize = 7_900;
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// Packs addresses by node into as few messages as fit: JSON arrays of `[app, key]`.
pub(super) fn pack(wake_ups: &[(NodeId, Address)]) -> Vec<(&NodeId, String)> {
    let mut sorted: Vec<&(NodeId, Address)> = wake_ups.iter().collect();
    sorted.sort();
    sorted.dedup();
    let mut messages: Vec<(&NodeId, String)> = Vec::new();
    for (node, Address { app, key }) in sorted {
        let entry = serde_json::json!([app, key]).to_string();
        match messages.last_mut() {
            Some((last, message)) if *last == node && message.len() + entry.len() < MESSAGE_MAX_BYTES => {
                message.pop();
                *message += &format!(",{entry}]");
            }
            _ => messages.push((node, format!("[{entry}]"))),
        }
    }
    messages
}

/// Of a message that another version may have sent: to look at every key is safe.
pub(super) fn unpack(message: &[u8]) -> Vec<WakeUp> {
    let Ok(keys) = serde_json::from_slice::<Vec<(App, Key)>>(message) else { return vec![WakeUp::All] };
    keys.into_iter().map(|(app, key)| WakeUp::Key(Address { app, key })).collect()
}

/// Listens until the receiver is dropped, on a connection that is opened again when it ends. After every interruption, in which messages
/// may have been lost, it sends `again`.
///
/// # Errors
/// When the first connection fails.
pub(super) async fn listen<T, S, M, E, C>(
    connect: impl Fn() -> C + Send + 'static,
    read: fn(&[u8]) -> Vec<T>,
    again: fn() -> T,
) -> Result<mpsc::Receiver<T>, E>
where
    T: Send + 'static,
    S: Stream<Item = M> + Send + 'static,
    M: AsRef<[u8]> + Send,
    E: std::fmt::Display + Send + 'static,
    C: Future<Output = Result<S, E>> + Send,
{
    let mut messages = Box::pin(connect().await?);
    let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
    let closed = sender.clone();
    let listen = async move {
        loop {
            while let Some(message) = messages.next().await {
                for wake_up in read(message.as_ref()) {
                    // If the channel is full, the wake-up is lost. Waiters also look again after a while without one.
                    let _ = sender.try_send(wake_up);
                }
            }
            messages = loop {
                match connect().await {
                    Ok(fresh) => break Box::pin(fresh),
                    Err(error) => tracing::warn!(%error, "cannot listen for wake-ups; trying again"),
                }
                sleep(RECONNECT_PAUSE).await;
            };
            let _ = sender.send(again()).await;
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            () = closed.closed() => {}
            () = listen => {}
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_addresses_is_packed_into_messages_that_fit() {
        let address = |number: usize| Address {
            app: App::default(),
            key: Key::parse(&format!("{number:04}{}", "\"\\🔒".repeat(80))).unwrap(),
        };
        let wake_ups: Vec<_> =
            (0..100).map(|number| (NodeId::new(if number % 2 == 0 { "a" } else { "b" }), address(number))).collect();
        let mut unpacked = Vec::new();
        for (node, message) in pack(&wake_ups) {
            assert!(message.len() < 8_000);
            for wake_up in unpack(message.as_bytes()) {
                let WakeUp::Key(address) = wake_up else { panic!("unreadable message") };
                unpacked.push((node.clone(), address));
            }
        }
        let mut expected = wake_ups.clone();
        expected.sort();
        unpacked.sort();
        assert_eq!(unpacked, expected);
    }
}
