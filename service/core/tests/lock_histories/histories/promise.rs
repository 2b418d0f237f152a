//! What the rules promise.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Each commit keeps tokens, numbers, rates, lock-delays, closings and events.
    CommitsAreSound,
    /// Leases of different owners live together only if they share.
    GoTogether,
    /// Permits granted within a shortest hold never exceed the limit.
    RateIsKept,
    /// A grant has the lowest free numbers below the limit.
    NumbersAreLowest,
    /// No grant gives a group more permits than its request allows.
    GroupWithinLimit,
    /// Free permits go to the group with fewest and groups take turns.
    GroupsTakeTurns,
    /// A closed key is granted to no client.
    ClosedGrantsNothing,
    /// Closing takes no lease and no position.
    ClosingTakesNothing,
    /// Tokens strictly rise over all grants.
    TokensRise,
    /// A lease is nested only under the token of its own owner.
    NestedOnlyForItsOwner,
    /// An acquire is granted or refused as the documentation says.
    AnswersAreTrue,
    /// A lease is never ended before its expiry.
    NeverEndedEarly,
    /// A lease outlives its expiry by no more than twice the clock bound.
    NeverOutlived,
    /// No expiry is later than the longest hold.
    NeverHeldTooLong,
    /// No new lease is granted during the lock-delay.
    DelayIsWaitedOut,
    /// A live waiter is served once the lock is free.
    WaitersAreServed,
    /// A node looks again when its first waiter can be granted the lock.
    NodesLookInTime,
    /// The node whose turn has come is notified.
    NextTurnIsNotified,
    /// A repeated command changes nothing.
    RepetitionsChangeNothing,
    /// A step says exactly whether it changed anything.
    ChangedIsExact,
    /// A lease id that has ended is never granted again.
    EndedStaysEnded,
    /// A lease that one node answers as lost is lost at every node.
    LostIsFinal,
    /// An end that is answered is in the state with the same reason and time.
    OneEnd,
    /// A lost lease is remembered with its reason.
    ReasonsAreTrue,
    /// A revoked lease is over by its deadline.
    RevokedByTheDeadline,
    /// A lease that was revoked or forced never comes back.
    RevokedIsOver,
    /// An order for a lease that has ended ends no later one.
    OrdersAreForWhatTheyMean,
    /// A give-back never takes a lease that was acknowledged since.
    GiveBackTakesNothingClaimed,
    /// Only its own lease id renews or ends a lease.
    OnlyItsOwnId,
    /// A renewal never shortens a lease unless it names a shorter length.
    RenewalExtends,
    /// The queue of one node is served in order, whatever its requests are for.
    FifoOnOneNode,
    /// A higher priority is never overtaken.
    StrictPriority,
    /// Across nodes no waiter is overtaken by more than the clock bound.
    FifoAcrossNodes,
    /// Readers that wait in a row are admitted together.
    ReadersGoTogether,
    /// A limit stays while permits are held or waited for.
    LimitIsKept,
    /// Setting a limit takes nothing from holders.
    LoweringTakesNothing,
    /// A token passes the fence exactly if it is live or the last.
    FenceIsExact,
    /// After a higher token no dead one passes the fence.
    FenceIsFinal,
    /// Every change to a lease has its event.
    EventsAreExact,
    /// No event says that a lease lives which is over.
    EventsAreAhead,
    /// Every state survives JSON, and is about as long as it says.
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
