//! What a server says of itself.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult};

/// The longest id of a run of a server that is accepted, in bytes. Redis makes 40.
pub(super) const RUN_ID_MAX: usize = 64;

/// The answer of a server to `INFO`.
pub(in crate::store) struct Info(pub String);

impl Info {
    /// As the server at the other end of this connection answers.
    pub(super) async fn of(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        Cmd::new().arg("INFO").query_async(connection).await.map(Self)
    }

    pub(super) fn field(&self, name: &str) -> &str {
        let lines = self.0.lines();
        let mut fields = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        fields.next().map(str::trim).unwrap_or_default()
    }

    /// The id that the process of the server gave itself at its start.
    ///
    /// # Errors
    /// When the server does not say it, or is not a master.
    pub(super) fn run_id_of_master(&self) -> RedisResult<&str> {
        let refused = |why| Err(RedisError::from(std::io::Error::other(why)));
        let run_id = self.field("run_id");
        if self.field("role") == "slave" {
            return refused("this Redis is a replica: only a master can be written to");
        }
        if run_id.is_empty() || run_id.len() > RUN_ID_MAX || run_id.contains(' ') {
            return refused("this Redis does not say its run_id, so a restart of it would not be noticed");
        }
        Ok(run_id)
    }

    /// The replication before the server's last promotion; zeros if it was never promoted, or has had no replica for long since.
    pub(super) fn promoted_from(&self) -> &str {
        Some(self.field("master_replid2")).filter(|id| !id.is_empty()).unwrap_or(NEVER_PROMOTED)
    }
}

const NEVER_PROMOTED: &str = "0";

/// Whether a server is not the one that had this run id and this last promotion, or was a replica since: commits that were acknowledged
/// may be missing in it.
pub(super) fn is_another(recorded: (&str, &str), info: &Info) -> bool {
    let promoted_from = info.promoted_from();
    let was_promoted = promoted_from.contains(|digit| digit != '0');
    recorded.0 != info.field("run_id") || was_promoted && recorded.1 != promoted_from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_or_promotion_makes_another_server_but_a_dropped_id_does_not() {
        let info = |run_id: &str, from: &str| Info(format!("run_id:{run_id}\r\nmaster_replid2:{from}\r\n"));
        for (recorded, here, is_other) in [
            (("a", "0"), info("a", "000"), false),
            (("a", "0"), info("b", "000"), true),
            (("a", "0"), info("a", "c1"), true),
            (("a", "c1"), info("a", "c1"), false),
            // A server that has had no replica for an hour drops the id.
            (("a", "c1"), info("a", "000"), false),
            (("a", "c1"), info("a", "c2"), true),
        ] {
            assert_eq!(is_another(recorded, &here), is_other, "{recorded:?} {}", here.0);
        }
    }
}
