//! Several pres at once.

use futures::future::join_all;
use latchgate_core::App;
use latchgate_core::gate::{OperationId, Report};

use super::{BatchReply, Operations, PostCall, PreCall, PreReply, StampText};

impl Operations {
    /// Several pres at once; with `all_or_nothing`, none is claimed in the end unless all may go.
    ///
    /// The claims are made one by one, and taken back by a post of failure if one of them is refused. Until then other callers
    /// find them in progress.
    pub async fn pre_all(&self, app: &App, calls: Vec<PreCall>, all_or_nothing: bool) -> BatchReply {
        let ids: Vec<OperationId> = calls.iter().map(|call| call.fingerprint.id).collect();
        let items = join_all(calls.into_iter().map(|call| self.pre(app, call))).await;
        let may_go = |item: &_| matches!(item, Ok(PreReply::Go { .. } | PreReply::Unguarded { .. }));
        let all_may_go = items.iter().all(may_go);
        if !all_may_go && all_or_nothing {
            let new_claims = ids.iter().zip(&items).filter_map(|(id, item)| match item {
                // A repeated one is an earlier call's, which may rely on it.
                Ok(PreReply::Go { stamp, repeated: false, .. }) => Some((*id, stamp.clone())),
                _ => None,
            });
            join_all(new_claims.map(|(id, stamp)| self.take_back(app, id, stamp))).await;
        }
        BatchReply { items, all_may_go }
    }

    async fn take_back(&self, app: &App, id: OperationId, stamp: StampText) {
        let failed = PostCall { report: Report::Failure, result: None, retention_ms: 0, permanent: false };
        if let Err(error) = self.post(app, id, &stamp, failed).await {
            tracing::warn!(%error, %id, "a claim of a refused batch stays until its lease passes");
        }
    }
}
