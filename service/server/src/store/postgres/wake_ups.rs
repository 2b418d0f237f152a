//! LISTEN and NOTIFY: one channel for each node, and one for operations that have ended.

use std::time::Duration;

use latchgate_core::lock::NodeId;
use latchgate_core::{Address, App, Key};
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::hosts::{Hosts, takes_writes};
use super::sessions::Session;
use crate::store::{WAKE_UPS_MAX, WakeUp};

/// Postgres requires a payload to be shorter than 8 000 bytes.
const PAYLOAD_MAX_BYTES: usize = 7_900;
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);
/// After this much silence, the node checks that the connection is still alive.
const QUIET_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Sends notifications in a statement of their own, after the commit. A notification takes a database-wide lock until its
/// transaction ends; this transaction has nothing to flush, so it is short.
pub(super) async fn notify(connection: &mut Session, wake_ups: &[(NodeId, Address)]) -> Result<(), sqlx::Error> {
    let (channels, payloads) = pack(wake_ups);
    connection
        .query("select pg_notify(n.channel, n.payload) from unnest($1::text[], $2::text[]) as n (channel, payload)")
        .bind(channels)
        .bind(payloads)
        .execute(&mut **connection)
        .await?;
    Ok(())
}

/// Listens on a separate connection until the receiver is dropped. After every interruption, in which notifications may have
/// been lost, it sends `again`.
///
/// # Errors
/// When the first connection fails. Later ones are opened again until one succeeds.
pub(in crate::store) async fn listen<T: Send + 'static>(
    hosts: Hosts,
    channel: String,
    read: fn(&str) -> Vec<T>,
    again: fn() -> T,
) -> Result<mpsc::Receiver<T>, sqlx::Error> {
    let listener = connect(&hosts, &channel).await?;
    let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
    tokio::spawn(async move {
        let mut listener = Some(listener);
        while !sender.is_closed() {
            if let Some(listener) = listener.take() {
                forward(listener, &sender, read).await;
            }
            match connect(&hosts, &channel).await {
                Ok(reconnected) => {
                    listener = Some(reconnected);
                    let _ = sender.send(again()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot listen for wake-ups; trying again");
                    sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    });
    Ok(receiver)
}

async fn connect(hosts: &Hosts, channel: &str) -> Result<PgListener, sqlx::Error> {
    let primary = timeout(CONNECT_MAX, hosts.primary()).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_MAX)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_with(primary.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// Passes notifications on until the connection or the receiver is gone.
async fn forward<T>(mut listener: PgListener, sender: &mpsc::Sender<T>, read: fn(&str) -> Vec<T>) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            // A connection that died silently looks like one without notifications, so it is checked; and so does one to a
            // primary that another server has replaced.
            () = sleep(QUIET_MAX) => {
                let answer = timeout(ANSWER_MAX, takes_writes(&mut listener)).await;
                if !matches!(answer, Ok(Ok(true))) {
                    return;
                }
            }
            notification = listener.try_recv() => {
                let Ok(Some(notification)) = notification else { return };
                for wake_up in read(notification.payload()) {
                    // If the channel is full, the wake-up is lost. Waiters also look again after a while without one.
                    let _ = sender.try_send(wake_up);
                }
            }
        }
    }
}

pub(super) fn channel_of(node: &NodeId) -> String {
    format!("latchgate_{}", node.as_str())
}

/// Packs addresses by node into as few payloads as fit: JSON arrays of `[app, key]`.
fn pack(wake_ups: &[(NodeId, Address)]) -> (Vec<String>, Vec<String>) {
    let mut sorted: Vec<&(NodeId, Address)> = wake_ups.iter().collect();
    sorted.sort();
    sorted.dedup();
    let mut channels: Vec<String> = Vec::new();
    let mut payloads: Vec<String> = Vec::new();
    for (node, address) in sorted {
        let channel = channel_of(node);
        let entry = serde_json::json!([address.app, address.key]).to_string();
        let fits = channels.last() == Some(&channel)
            && payloads.last().is_some_and(|payload| payload.len() + entry.len() < PAYLOAD_MAX_BYTES);
        if let (true, Some(payload)) = (fits, payloads.last_mut()) {
            payload.pop();
            payload.push(',');
            payload.push_str(&entry);
            payload.push(']');
        } else {
            channels.push(channel);
            payloads.push(format!("[{entry}]"));
        }
    }
    (channels, payloads)
}

pub(super) fn unpack(payload: &str) -> Vec<WakeUp> {
    let Ok(entries) = serde_json::from_str::<Vec<(String, String)>>(payload) else {
        // Another version may have sent it. To look at every key is safe.
        return vec![WakeUp::All];
    };
    let address = |(app, key): (String, String)| {
        Some(WakeUp::Key(Address { app: App::parse(&app).ok()?, key: Key::parse(&key).ok()? }))
    };
    entries.into_iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_addresses_is_packed_into_payloads_that_fit() {
        let address = |number: usize| Address {
            app: App::default(),
            key: Key::parse(&format!("{number:04}{}", "\"\\🔒".repeat(80))).unwrap(),
        };
        let wake_ups: Vec<_> =
            (0..100).map(|number| (NodeId::new(if number % 2 == 0 { "a" } else { "b" }), address(number))).collect();
        let (channels, payloads) = pack(&wake_ups);
        assert!(payloads.iter().all(|payload| payload.len() < 8_000));
        let mut unpacked = Vec::new();
        for (channel, payload) in channels.iter().zip(&payloads) {
            for wake_up in unpack(payload) {
                let WakeUp::Key(address) = wake_up else { panic!("unreadable payload") };
                unpacked.push((channel.clone(), address));
            }
        }
        let mut expected: Vec<_> = wake_ups.iter().map(|(node, address)| (channel_of(node), address.clone())).collect();
        expected.sort();
        unpacked.sort();
        assert_eq!(unpacked, expected);
    }
}
