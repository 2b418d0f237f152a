//! Several pres at once.

use futures::future::join_all;
use futures::{StreamExt, stream};
use latchgate_core::App;
use latchgate_core::gate::Outcome;
use tokio::time::Instant;

use super::give_back::GiveBackOnDrop;
use super::{BatchReply, Operations, PreCall, Reply, ms};
use crate::failure::{CallResult, Failure};

/// Claims of one batch that are on their way at once: each has its own time, and those of other callers come between them.
const AT_ONCE: usize = 16;

impl Operations {
    /// Several pres at once; with `all_or_nothing`, none is claimed in the end unless all may go, but for those of unknown outcome.
    ///
    /// Each claim is made by itself, and is given back if another one is refused. Until then other callers find it in progress.
    pub async fn pre_all(&self, app: &App, calls: &[PreCall], all_or_nothing: bool) -> BatchReply {
        let claims = calls.iter().map(|call| async move {
            let give_back = GiveBackOnDrop::new(&self.inner, app, call);
            let item = self.pre_with(app, call, give_back.claim.clone()).await;
            (give_back, (item, Instant::now()))
        });
        let claims: Vec<_> = claims.collect();
        let (give_back, items): (Vec<_>, Vec<_>) = stream::iter(claims).buffered(AT_ONCE).unzip().await;
        let items: Vec<_> = items.into_iter().map(left).collect();
        let may_go = |item: &_| matches!(item, Ok(Reply { outcome: Outcome::Go(_), .. }));
        let all_may_go = items.iter().all(may_go);
        if all_may_go || !all_or_nothing {
            give_back.into_iter().for_each(GiveBackOnDrop::answered);
            return BatchReply { items, all_may_go };
        }
        let given_back = give_back.into_iter().zip(items).map(|(claim, item)| claim.give_back(item));
        BatchReply { items: join_all(given_back).await, all_may_go }
    }
}

/// A go counts for what is left of its lease when the batch is answered.
fn left((mut item, answered_at): (CallResult<Reply>, Instant)) -> CallResult<Reply> {
    if let Ok(Reply { outcome: Outcome::Go(go), .. }) = &mut item {
        go.remaining_ms = go.remaining_ms.saturating_sub(ms(answered_at.elapsed()));
        if go.remaining_ms == 0 {
            return Err(Failure::OutcomeUnknown("the lease passed before the answer".to_owned()));
        }
    }
    item
}
