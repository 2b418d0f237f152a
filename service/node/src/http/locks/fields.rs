//! The fields that requests for one key and for several have in common, and their rules.

use std::time::Duration;

use latchgate_core::access::has_api_key;
use latchgate_core::key::check_name;
use latchgate_core::lock::{Demand, Group, LeaseId, Metadata, Mode, Note, Owner, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::http::context::{Context, MIN_HOLD_MS_MAX, TTL_MS_MIN};
use crate::http::problem::{Code, Problem, within};
use crate::http::ticket::Resumed;

/// Longest `metadata`, in bytes of compact JSON.
const METADATA_MAX_BYTES: usize = 1_024;
/// Longest `reason`, in bytes.
pub const REASON_MAX_BYTES: usize = 512;
/// Highest token in a request: every number up to it is exact in JSON, and no key reaches it before the year 2248.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;
/// Highest `limit` of permits.
pub const LIMIT_MAX: u32 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModeName {
    /// No other lease at the same time.
    #[default]
    Exclusive,
    /// Together with other shared leases.
    Shared,
    /// `permits` out of `limit`.
    Permits,
}

/// How one key is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeFields<'a> {
    pub mode: Option<ModeName>,
    pub permits: Option<u32>,
    pub limit: Option<u32>,
    pub group: Option<&'a str>,
    pub group_limit: Option<u32>,
}

impl ModeFields<'_> {
    /// The mode with its permits, the limit and the group.
    ///
    /// # Errors
    /// Names the wrong field.
    pub fn parse(self) -> Result<Demand, Problem> {
        let mode = self.mode.unwrap_or_default();
        if mode != ModeName::Permits {
            let named = [
                ("permits", self.permits.is_some()),
                ("limit", self.limit.is_some()),
                ("group", self.group.is_some()),
                ("group_limit", self.group_limit.is_some()),
            ];
            if let Some((field, _)) = named.into_iter().find(|(_, is_named)| *is_named) {
                return Err(Problem::field(field, "is allowed only with \"mode\": \"permits\""));
            }
        }
        match mode {
            ModeName::Exclusive => Ok(Demand::of(Mode::Exclusive)),
            ModeName::Shared => Ok(Demand::of(Mode::Shared)),
            ModeName::Permits => {
                let limit = self.limit.map(|limit| within("limit", limit, 1..=LIMIT_MAX)).transpose()?;
                let permits = self.permits.unwrap_or(1);
                let permits = within("permits", permits, 1..=limit.unwrap_or(LIMIT_MAX))?;
                Ok(Demand { mode: Mode::Permits(permits), limit, share: self.share(permits)? })
            }
        }
    }

    fn share(self, permits: u32) -> Result<Option<Share>, Problem> {
        let Some(group) = self.group else {
            return match self.group_limit {
                Some(_) => Err(Problem::field("group_limit", "is allowed only with group")),
                None => Ok(None),
            };
        };
        check_no_api_key("group", group)?;
        let group = Group::parse(group).map_err(|error| Problem::field("group", error))?;
        let limit_max = self.limit.unwrap_or(LIMIT_MAX);
        let limit = self.group_limit.map(|limit| within("group_limit", limit, 1..=limit_max)).transpose()?;
        if limit.is_some_and(|limit| limit < permits) {
            return Err(Problem::field(
                "group_limit",
                "must be at least permits: otherwise the request waits for ever",
            ));
        }
        Ok(Some(Share { group, limit }))
    }
}

impl Context {
    pub fn check_ttl(&self, ttl_ms: u64) -> Result<u64, Problem> {
        within("ttl_ms", ttl_ms, TTL_MS_MIN..=self.limits.ttl_ms_max)
    }

    /// How long a request waits. Longer than this node allows is shortened.
    pub fn wait(&self, wait_ms: Option<u64>) -> Duration {
        Duration::from_millis(wait_ms.unwrap_or(0).min(self.limits.wait_ms_max))
    }

    /// Says in the answer to a wait that has ended how long it was at most, if it may have been shortened.
    pub fn with_wait_max(&self, problem: Problem, wait: Duration) -> Problem {
        let max = self.limits.wait_ms_max;
        let has_ended = matches!(problem.code(), Code::WaitTimeout | Code::OperationInProgress);
        if has_ended && wait >= Duration::from_millis(max) { problem.with("wait_ms_max", max) } else { problem }
    }

    /// A shared lock that is not used any more keeps no other client from sharing it.
    pub fn check_min_hold(&self, min_hold_ms: Option<u64>, modes: &[Mode]) -> Result<u64, Problem> {
        let min_hold_ms = within("min_hold_ms", min_hold_ms.unwrap_or(0), 0..=MIN_HOLD_MS_MAX)?;
        if min_hold_ms > 0 && modes.contains(&Mode::Shared) {
            return Err(Problem::field("min_hold_ms", "is not allowed with the mode shared"));
        }
        Ok(min_hold_ms)
    }
}

pub fn check_token(token: u64) -> Result<u64, Problem> {
    within("token", token, 0..=TOKEN_MAX)
}

/// For texts that answers show to other clients, and logs.
pub fn check_no_api_key(field: &str, text: &str) -> Result<(), Problem> {
    if has_api_key(text) { Err(Problem::field(field, "must not contain an API key")) } else { Ok(()) }
}

pub fn parse_owner(owner: Option<&str>) -> Result<Option<Owner>, Problem> {
    owner.map_or(Ok(()), |owner| check_no_api_key("owner", owner))?;
    owner.map(Owner::parse).transpose().map_err(|error| Problem::field("owner", error))
}

pub fn parse_lease_id(text: &str) -> Result<LeaseId, Problem> {
    LeaseId::parse(text).map_err(|error| Problem::field("lease_id", error))
}

pub fn parse_metadata(field: &str, metadata: Map<String, Value>) -> Result<Metadata, Problem> {
    let text = Value::Object(metadata).to_string();
    if text.len() > METADATA_MAX_BYTES {
        let rule = format!("must be at most {METADATA_MAX_BYTES} bytes of compact JSON, not {}", text.len());
        return Err(Problem::field(field, rule));
    }
    check_no_api_key(field, &text)?;
    Ok(Metadata::from_json_text(&text))
}

pub fn parse_note(reason: Option<&str>, by: Option<&str>) -> Result<Note, Problem> {
    if let Some(reason) = reason {
        check_name(reason, REASON_MAX_BYTES).map_err(|error| Problem::field("reason", error))?;
    }
    for (field, text) in [("reason", reason), ("by", by)] {
        text.map_or(Ok(()), |text| check_no_api_key(field, text))?;
    }
    let by = by.map(Owner::parse).transpose().map_err(|error| Problem::field("by", error))?;
    Ok(Note { reason: reason.map(Into::into), by })
}

/// The ticket's lease id, else the client's, else a new one.
pub fn lease_id(resumed: Option<&Resumed>, proposed: Option<&str>) -> Result<LeaseId, Problem> {
    let of_ticket = resumed.map(|resumed| Ok(resumed.lease_id.clone()));
    of_ticket.or(proposed.map(parse_lease_id)).unwrap_or_else(|| parse_lease_id(&uuid::Uuid::new_v4().to_string()))
}

/// A ticket continues one wait. It is not valid for another request, nor for a higher priority.
pub fn check_unchanged(resumed: Option<&Resumed>, lease_id: Option<&str>, priority: Option<u8>) -> Result<(), Problem> {
    let Some(resumed) = resumed else { return Ok(()) };
    let invalid = |detail: &str| Err(Problem::new(Code::InvalidTicket, detail).with("field", "ticket"));
    if lease_id.is_some_and(|lease_id| lease_id != resumed.lease_id.as_str()) {
        return invalid("This ticket is for another lease_id.");
    }
    if priority.is_some_and(|priority| priority != resumed.position.priority) {
        return invalid("This ticket is for another priority.");
    }
    Ok(())
}

/// A body of an acquire: its own fields, then those that all acquires have. A new field is written here only.
macro_rules! acquire_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        #[derive(Debug, serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name {
            $($own)*
            /// Refused clients see it. If absent, the server makes one, which begins with `anonymous-`.
            #[schema(example = "billing-7", max_length = 256, min_length = 1)]
            owner: Option<String>,
            /// A new random id for the lease. If the answer is lost, a repeated request with the same id gets the same grant,
            /// or 410 once the lease is one of the last eight of the key that have ended. The server makes one if absent.
            #[schema(max_length = 64, min_length = 1, pattern = "^[A-Za-z0-9._:-]+$")]
            lease_id: Option<String>,
            /// Length of the lease in ms: 100 to 300 000 unless configured otherwise; 30 000 if absent.
            #[schema(example = 30_000, minimum = 1, maximum = 31_536_000_000_u64)]
            ttl_ms: Option<u64>,
            /// How long to wait in the queue, in ms: up to 50 000 unless configured otherwise; 0, the default, does not wait.
            #[schema(example = 0, maximum = 86_400_000)]
            wait_ms: Option<u64>,
            /// 1 to 10, higher first; 1 if absent. Equal priorities are served in the order of arrival.
            #[schema(minimum = 1, maximum = 10)]
            priority: Option<u8>,
            /// Whether an `owner` that holds the lock already gets another lease with the same token; false if absent. Permits are
            /// always counted again.
            reentrant: Option<bool>,
            /// Lock-delay: if this lease expires, the lock is not granted for this long, in ms; 0 if absent.
            #[schema(maximum = 3_153_600_000_000_u64)]
            delay_ms: Option<u64>,
            /// How long the lock stays taken after an early release, in ms from the grant; 0 if absent. With the mode `permits`,
            /// however the lease ends: at most `limit` permits are granted in any such time. Not with the mode `shared`.
            #[schema(maximum = 3_153_600_000_000_u64)]
            min_hold_ms: Option<u64>,
            /// Renewals extend the lease no further than this, in ms from the grant.
            #[schema(minimum = 1, maximum = 3_153_600_000_000_u64)]
            max_hold_ms: Option<u64>,
            /// From a wait that ended without the lock less than a minute ago: the request returns to its position in the queue.
            /// Repeat the other fields of that request.
            #[schema(min_length = 1, max_length = 1024)]
            ticket: Option<String>,
            /// A JSON object of at most 1 KiB; refused clients see it.
            #[schema(value_type = Option<Object>)]
            metadata: Option<Map<String, Value>>,
        }

        impl $name {
            /// The request for leases of these modes. Mode, limit, group and barging are the caller's.
            fn lock_request(
                self,
                context: &Context,
                app: &App,
                modes: &[Mode],
                resumed: Option<Resumed>,
            ) -> Result<LockRequest, Problem> {
                check_unchanged(resumed.as_ref(), self.lease_id.as_deref(), self.priority)?;
                use crate::http::context::{DELAY_MS_MAX, MAX_HOLD_MS_MAX, TTL_MS_MIN};
                let max_hold = |ms| within("max_hold_ms", ms, TTL_MS_MIN..=MAX_HOLD_MS_MAX);
                Ok(LockRequest {
                    lease: LeaseTerms {
                        owner: parse_owner(self.owner.as_deref())?,
                        demand: Demand::default(),
                        ttl_ms: context.check_ttl(self.ttl_ms.unwrap_or(context.limits.ttl_ms_default))?,
                        reentrant: self.reentrant.unwrap_or_default(),
                        barge: false,
                        delay_ms: within("delay_ms", self.delay_ms.unwrap_or(0), 0..=DELAY_MS_MAX)?,
                        min_hold_ms: context.check_min_hold(self.min_hold_ms, modes)?,
                        max_hold_ms: self.max_hold_ms.map(max_hold).transpose()?,
                        warn_after_ms: context.access.warn_after_ms(app),
                        metadata: self.metadata.map(|fields| parse_metadata("metadata", fields)).transpose()?,
                        lease_id: lease_id(resumed.as_ref(), self.lease_id.as_deref())?,
                    },
                    priority: within("priority", self.priority.unwrap_or(PRIORITY_MIN), PRIORITY_MIN..=PRIORITY_MAX)?,
                    wait: context.wait(self.wait_ms),
                    position: resumed.as_ref().map(|resumed| resumed.position),
                    is_new_lease: resumed.is_none() && self.lease_id.is_none(),
                })
            }
        }
    };
}
pub(in crate::http) use acquire_body;
