//! Several pres at once.

use futures::future::join_all;
use latchgate_core::App;
use latchgate_core::gate::{OperationId, Report};

use super::{BatchTold, Operations, PostAsk, PreAsk, PreTold, StampText};

impl Operations {
    /// Several pres at once; with `all_or_nothing`, none is claimed in the end unless all may go.
    ///
    /// The claims are made one by one, and taken back by a post of failure if one of them is refused. Until then others
    /// find them in progress.
    pub async fn pre_all(&self, app: &App, asks: Vec<PreAsk>, all_or_nothing: bool) -> BatchTold {
        let ids: Vec<OperationId> = asks.iter().map(|ask| ask.fingerprint.id).collect();
        let items = join_all(asks.into_iter().map(|ask| self.pre(app, ask))).await;
        let may_go = |item: &_| matches!(item, Ok(PreTold::Go { .. } | PreTold::Unguarded { .. }));
        let all_may_go = items.iter().all(may_go);
        if !all_may_go && all_or_nothing {
            let new_claims = ids.iter().zip(&items).filter_map(|(id, item)| match item {
                // A repeated one is an earlier call's, which may rely on it.
                Ok(PreTold::Go { stamp, repeated: false, .. }) => Some((*id, stamp.clone())),
                _ => None,
            });
            join_all(new_claims.map(|(id, stamp)| self.take_back(app, id, stamp))).await;
        }
        BatchTold { items, all_may_go }
    }

    async fn take_back(&self, app: &App, id: OperationId, stamp: StampText) {
        let failed = PostAsk { report: Report::Failure, result: None, retention_ms: 0, permanent: false };
        if let Err(error) = self.post(app, id, &stamp, failed).await {
            tracing::warn!(%error, %id, "a claim of a refused batch stays until its lease passes");
        }
    }
}
