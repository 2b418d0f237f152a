//! What the rules promise.

use std::fmt;

macro_rules! promises {
    ($($name:ident: $text:literal,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Promise {
            $($name,)+
        }

        impl fmt::Display for Promise {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)+ })
            }
        }
    };
}

promises! {
    CommitsAreSound: "each commit keeps tokens, numbers, rates, lock-delays, closings and events",
    GoTogether: "leases of different owners live together only if they share",
    RateIsKept: "permits granted within a shortest hold never exceed the limit",
    NumbersAreLowest: "a grant has the lowest free numbers below the limit",
    GroupWithinLimit: "no grant gives a group more permits than its request allows",
    GroupsTakeTurns: "free permits go to the group with fewest and groups take turns",
    ClosedGrantsNothing: "a closed key is granted to no client",
    ClosingTakesNothing: "closing takes no lease and no position",
    TokensRise: "tokens strictly rise over all grants",
    NestedOnlyForItsOwner: "a lease is nested only under the token of its own owner",
    AnswersAreTrue: "an acquire is granted or refused as the documentation says",
    NeverEndedEarly: "a lease is never ended before its expiry",
    NeverOutlived: "a lease outlives its expiry by no more than twice the clock bound",
    NeverHeldTooLong: "no expiry is later than the longest hold",
    DelayIsWaitedOut: "no new lease is granted during the lock-delay",
    WaitersAreServed: "a live waiter is served once the lock is free",
    NodesLookInTime: "a node looks again when its first waiter can be granted the lock",
    NextTurnIsNotified: "the node whose turn has come is notified",
    RepetitionsChangeNothing: "a repeated command changes nothing",
    ChangedIsExact: "a step says exactly whether it changed anything",
    EndedStaysEnded: "a lease id that has ended is never granted again",
    LostIsFinal: "a lease that one node answers as lost is lost at every node",
    OneEnd: "an end that is answered is in the state with the same reason and time",
    ReasonsAreTrue: "a lost lease is remembered with its reason",
    RevokedByTheDeadline: "a revoked lease is over by its deadline",
    RevokedIsOver: "a lease that was revoked or forced never comes back",
    OrdersAreForWhatTheyMean: "an order for a lease that has ended ends no later one",
    GiveBackTakesNothingClaimed: "a give-back never takes a lease that was acknowledged since",
    OnlyItsOwnId: "only its own lease id renews or ends a lease",
    RenewalExtends: "a renewal never shortens a lease unless it names a shorter length",
    FifoOnOneNode: "the queue of one node is served in order, whatever its requests are for",
    StrictPriority: "a higher priority is never overtaken",
    FifoAcrossNodes: "across nodes no waiter is overtaken by more than the clock bound",
    ReadersGoTogether: "readers that wait in a row are admitted together",
    LimitIsKept: "a limit stays while permits are held or waited for",
    LoweringTakesNothing: "setting a limit takes nothing from holders",
    FenceIsExact: "a token passes the fence exactly if it is live or the last",
    FenceIsFinal: "after a higher token no dead one passes the fence",
    EventsAreExact: "every change to a lease has its event",
    EventsAreAhead: "no event says that a lease lives which is over",
    SurvivesJson: "every state survives JSON, and is about as long as it says",
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
