//! What the rules promise.

/// One test each in `main.rs`, whose names say them in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    GoTogether,
    PermitsWithinLimit,
    RateIsKept,
    NumbersAreDistinct,
    NumbersAreLowest,
    NumbersStay,
    GroupWithinLimit,
    GroupsTakeTurns,
    ClosedGrantsNothing,
    ClosingTakesNothing,
    TokensRise,
    NestedOnlyForItsOwner,
    HoldersWaitForNobody,
    UpgradeNeverWaits,
    RefusalsAreTrue,
    NeverEndedEarly,
    NeverOutlived,
    NeverHeldTooLong,
    DelayIsWaitedOut,
    WaitersAreServed,
    NextTurnIsNotified,
    RepetitionsChangeNothing,
    ChangedIsExact,
    EndedStaysEnded,
    LostIsFinal,
    OneEnd,
    ReasonsAreTrue,
    RevokedByTheDeadline,
    RevokedIsOver,
    GiveBackTakesNothingClaimed,
    OnlyItsOwnId,
    RenewalExtends,
    FifoOnOneNode,
    StrictPriority,
    FifoAcrossNodes,
    WritersAreNotStarved,
    LargeRequestsAreNotStarved,
    ReadersGoTogether,
    MismatchIsExact,
    LimitIsKept,
    LoweringTakesNothing,
    FenceIsExact,
    FenceIsFinal,
    EventsAreExact,
    EventsAreAhead,
    EventsGiveTheHolders,
    SurvivesJson,
}

#[derive(Default)]
pub struct Broken(pub Vec<(Promise, String)>);

impl Broken {
    pub fn expect(&mut self, is_kept: bool, promise: Promise, how: impl FnOnce() -> String) {
        if !is_kept {
            self.0.push((promise, how()));
        }
    }
}
