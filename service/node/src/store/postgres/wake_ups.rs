//! LISTEN and NOTIFY: one channel for each node, and one for operations that have ended.

use std::time::Duration;

use futures::{Stream, stream};
use latchgate_core::Address;
use latchgate_core::lock::NodeId;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::hosts::{Hosts, takes_writes};
use super::sessions::Session;
use crate::store::wake_ups::pack;

/// After this much silence, the node checks that the connection is still alive.
const QUIET_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Sends notifications in a statement of their own, after the commit. A notification takes a database-wide lock until its
/// transaction ends; this transaction has nothing to flush, so it is short.
pub(super) async fn notify(connection: &mut Session, wake_ups: &[(NodeId, Address)]) -> Result<(), sqlx::Error> {
    let (channels, payloads): (Vec<_>, Vec<_>) =
        pack(wake_ups).into_iter().map(|(node, message)| (channel_of(node), message)).unzip();
    connection
        .query("select pg_notify(n.channel, n.payload) from unnest($1::text[], $2::text[]) as n (channel, payload)")
        .bind(channels)
        .bind(payloads)
        .execute(&mut **connection)
        .await?;
    Ok(())
}

/// The notifications of a channel, on a connection of their own, until that ends.
pub(in crate::store) async fn subscribe(
    hosts: Hosts,
    channel: String,
) -> Result<impl Stream<Item = String> + Send, sqlx::Error> {
    let primary = timeout(CONNECT_MAX, hosts.primary()).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_MAX)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_with(primary.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(&channel).await?;
    Ok(stream::unfold(listener, async |mut listener| Some((next(&mut listener).await?, listener))))
}

async fn next(listener: &mut PgListener) -> Option<String> {
    loop {
        match timeout(QUIET_MAX, listener.try_recv()).await {
            Ok(notification) => return notification.ok().flatten().map(|it| it.payload().to_owned()),
            // A connection that died silently looks like one without notifications, so it is checked; and so does one to a primary
            // that another server has replaced.
            Err(_) => match timeout(ANSWER_MAX, takes_writes(&mut *listener)).await {
                Ok(Ok(true)) => {}
                _ => return None,
            },
        }
    }
}

pub(super) fn channel_of(node: &NodeId) -> String {
    format!("latchgate_{}", node.as_str())
}
