//! Ends of operations told from node to node by LISTEN and NOTIFY. A notification serialises commits, so one is sent
//! only for a record that says that somebody waits.

use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::OperationAddress;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::mpsc;

use crate::store::WAKE_UPS_MAX;
use crate::store::gate::WakeUp;

pub(super) const CHANNEL: &str = "latchgate_operations";
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn payload(address: &OperationAddress) -> String {
    serde_json::json!([address.app, address.id]).to_string()
}

/// # Errors
/// When the first connection fails; later ones are tried again and again until the receiver is dropped.
pub(super) async fn listen(options: PgConnectOptions) -> Result<mpsc::Receiver<WakeUp>, sqlx::Error> {
    let mut listener = Some(connect(&options).await?);
    let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
    tokio::spawn(async move {
        while !sender.is_closed() {
            if let Some(listener) = listener.take() {
                forward(listener, &sender).await;
            }
            match connect(&options).await {
                Ok(again) => {
                    listener = Some(again);
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

async fn connect(options: &PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(1))
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_with(options.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Passes notifications on until the connection or the receiver is gone.
async fn forward(mut listener: PgListener, sender: &mpsc::Sender<WakeUp>) {
    loop {
        tokio::select! {
            () = sender.closed() => return,
            notification = listener.try_recv() => {
                let Ok(Some(notification)) = notification else { return };
                // A full channel misses it; whoever waits looks again on a timer all the same.
                let _ = sender.try_send(read(notification.payload()));
            }
        }
    }
}

/// What is not ours to read: look at everything rather than at nothing.
fn read(payload: &str) -> WakeUp {
    let parsed = serde_json::from_str::<(App, _)>(payload);
    parsed.map_or(WakeUp::All, |(app, id)| WakeUp::Operation(OperationAddress { app, id }))
}
