//! What can be broken.

use std::fmt;

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident: $broken:literal,)+) => {
        /// A promise that a history can break. The text of a rule says what was broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rule {
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }

        impl fmt::Display for Rule {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $broken,)+
                })
            }
        }
    };
}

rules! {
    /// A closed key is not granted.
    Closed: "a closed key was granted",
    /// The fence of an exclusive lock lets no token pass that is lower than one that was granted, and lets that of a holder pass.
    Fence: "the fence let an old token pass, or refused that of a holder",
    /// A holder that repeats its request gets its lease.
    Repeats: "a holder was refused its own lease",
    /// Leases that exclude each other are never held at once.
    OneHolder: "two leases of one key were held at once",
    /// No more permits than the limit are held at once.
    Permits: "more permits of one key were held at once than there are, or under two limits",
    /// Live permits have numbers of their own, below the limit.
    Slots: "a permit had the number of another, or none below the limit",
    /// A group holds no more permits than `group_limit`.
    GroupLimit: "a group held more permits than its limit",
    /// By the store's clock, no lease is granted before the one that excludes it ends.
    StoreClock: "by the store's clock, a lease was granted before the expiry of the lease before it",
    /// No more permits than the limit are granted in any `min_hold_ms`.
    Rate: "more permits were granted within min_hold_ms than there are",
    /// The tokens of a key rise from lease to lease; a lease keeps its token.
    TokensRise: "a token did not rise from one lease to the next, or changed within one",
    /// A lease that was released or renewed had been granted, or may have been: what was refused had no effect.
    GrantedFirst: "a lease was released or renewed that had not been granted",
    /// A lease that was answered as ended has ended.
    EndedStays: "a lease was renewed after its end",
    /// After a revocation, leases end by its deadline.
    RevokedEnds: "a lease was renewed after the deadline of a revocation",
    /// An acknowledged grant or renewal survives until its expiry.
    Survives: "a lease was lost before its expiry",
    /// A lease id belongs to one client.
    OneClient: "a lease id was used by two clients",
    /// A grant or renewal has all that its holder needs.
    WholeAnswer: "an answer lacks its token, its length or its stamp",
    /// The holders in a refusal may have held the lock at some moment of the call.
    TrueRefusal: "a refusal named a holder that did not hold the lock during the call",
    /// Waiters are served by priority, then by arrival.
    Order: "a waiter was overtaken by a later one of no higher priority",
    /// A waiter that comes back with its ticket has its position.
    TicketPosition: "a waiter with a ticket was overtaken by a later one of no higher priority",
    /// A multilock is granted whole or not at all.
    AllOrNone: "some locks of a multilock were granted and others were not",
    /// When all clients have gone, no holders and no waiters remain.
    Quiet: "a key had holders or waiters after all clients had ended",
    /// At most one attempt of an operation has permission to proceed.
    OneGo: "two attempts of one operation had permission to proceed at once",
    /// A repeated pre of an attempt gets the same stamp.
    SameStamp: "an attempt got two stamps while its lease was live",
    /// Attempts are counted and never forgotten.
    AttemptsRise: "an attempt after one that had not ended was not counted higher",
    /// With `block`, no attempt begins after one that let its lease pass.
    Blocked: "an attempt began although the one before it let its lease pass and blocks",
    /// A success is remembered for its retention.
    DoneStays: "an operation that was done could be done again within its retention",
    /// A duplicate gets the result that was posted.
    StableResult: "a duplicate got another result than was posted",
    /// The post of a superseded attempt changes nothing.
    Superseded: "the post of a superseded attempt was accepted",
    /// A stream has every grant and every end.
    EventMissing: "an event is missing from a stream",
    /// A stream has each event once.
    EventTwice: "an event came twice in one stream",
    /// The events of a key are in the order of their commits.
    EventOrder: "the events of a key are out of order",
    /// Events tell of what clients did.
    TrueEvent: "an event tells of what no client did, or of another end than clients saw",
}
