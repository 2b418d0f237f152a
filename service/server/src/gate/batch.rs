//! Several pres at once.

use futures::future::join_all;
use latchgate_core::App;

use super::give_back::Unanswered;
use super::{BatchReply, Operations, PreCall, PreReply};

impl Operations {
    /// Several pres at once; with `all_or_nothing`, none is claimed in the end unless all may go.
    ///
    /// The claims are made one by one, and are given back if one of them is refused. Until then other callers find them in
    /// progress.
    pub async fn pre_all(&self, app: &App, calls: &[PreCall], all_or_nothing: bool) -> BatchReply {
        let unanswered: Vec<_> = calls.iter().map(|call| Unanswered::new(&self.inner, app, call)).collect();
        let pres = calls.iter().zip(&unanswered).map(|(call, of)| self.pre_with(app, call, of.claim.clone()));
        let items = join_all(pres).await;
        let may_go = |item: &_| matches!(item, Ok(PreReply::Go { .. } | PreReply::Unguarded { .. }));
        let all_may_go = items.iter().all(may_go);
        if !all_may_go && all_or_nothing {
            join_all(unanswered.into_iter().zip(&items).map(|(claim, item)| claim.give_back(item))).await;
        } else {
            unanswered.into_iter().for_each(Unanswered::answered);
        }
        BatchReply { items, all_may_go }
    }
}
