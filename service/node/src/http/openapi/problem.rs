//! The one schema of all problems. A problem is built where it happens, from its code and the fields that the code has.

use latchgate_core::gate::Report;
use serde_json::{Map, Value};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::format::{DateTime, answers};
use crate::http::locks::json::Holder;
use crate::http::operations::records::{ClaimedBy, ResolutionAnswer};
use crate::http::problem::Code;

answers! {
    /// An answer that does not let the client proceed. Which of the optional fields it has depends on its `code`.
    #[allow(dead_code, reason = "described, not built")]
    pub struct Problem {
        /// The page that explains the code, relative to the server.
        #[schema(example = "/errors/lock-held")]
        r#type: String,
        #[schema(example = "The lock is held")]
        title: String,
        #[schema(example = 423)]
        status: u16,
        /// Stable: clients may rely on it.
        #[schema(value_type = ProblemCode)]
        code: String,
        /// For humans; may change.
        detail: String,
        /// When to try again, in ms; `Retry-After` gives it in whole seconds.
        retry_after_ms?: Option<u64>,
        /// The field that is wrong, the parameter, `body` or `path`.
        field?: Option<String>,
        /// Which entry of the list is wrong or not permitted, from 0.
        index?: Option<u32>,
        /// The host that the node does not have.
        host?: Option<String>,
        /// The origin of the web page; null if the browser did not say it.
        origin: Option<String>,
        /// The scope that is needed.
        scope?: Option<String>,
        /// The API key is limited to keys with these prefixes.
        prefixes?: Option<Vec<String>>,
        /// Which quota of the app is reached.
        quota?: Option<String>,
        /// The limit of the quota, or of the key's permits; null if none is set.
        limit: Option<u64>,
        /// What is left of the quota.
        remaining?: Option<u64>,
        /// The key that refuses, or whose state cannot be read.
        key?: Option<String>,
        /// The lease, in an answer about several; after `outcome-unknown`, repeat the acquire with it.
        lease_id?: Option<String>,
        /// The first 16 leases that hold the lock.
        holders?: Option<Vec<Holder>>,
        /// How many leases hold the lock.
        holders_count?: Option<u64>,
        /// How many requests wait for the lock.
        waiters?: Option<u64>,
        /// Where the request would stand in the queue, or stood, from 1.
        position?: Option<u64>,
        /// The group of the request.
        group?: Option<String>,
        /// How many permits the group has.
        group_held?: Option<u32>,
        /// The `group_limit` of the request: if the request would give the group more, that is why it is refused.
        group_limit?: Option<u32>,
        /// How long the request waited, in ms.
        waited_ms?: Option<u64>,
        /// The longest wait of this node, in ms, if the request asked for more.
        wait_ms_max?: Option<u64>,
        /// Continues the wait: send it with the same request within a minute.
        ticket?: Option<String>,
        /// The lock is not granted before this.
        delayed_until?: Option<DateTime>,
        /// Time until then, in ms.
        delay_left_ms?: Option<u64>,
        /// Why an operator has closed the key.
        reason?: Option<String>,
        /// When the key opens by itself; absent if it must be opened.
        until?: Option<DateTime>,
        /// Time until then, in ms.
        until_ms?: Option<u64>,
        /// Why the lease has ended, or why the outcome of the operation is not known.
        #[schema(value_type = Why)]
        why?: Option<String>,
        /// When the lease has ended or the operation has succeeded or become unknown; null if that is not known.
        at: Option<DateTime>,
        /// In a call about many leases, what became of each: it has a `status`, and a `code` unless that is 200.
        results?: Option<Vec<Map<String, Value>>>,
        /// How long the state of the key would be.
        bytes?: Option<u64>,
        /// How long it may be.
        bytes_max?: Option<u64>,
        /// The highest token of the key; 0 if it has no record.
        current?: Option<u64>,
        /// The operation.
        id?: Option<String>,
        /// After `outcome-unknown`, repeat the pre with it.
        attempt_id?: Option<String>,
        /// The attempt that runs, has ended, or has taken over.
        attempt?: Option<u32>,
        /// As the attempt that has the record gave it.
        label?: Option<String>,
        /// As the attempt that has the record gave it.
        #[schema(value_type = Object)]
        metadata?: Option<Value>,
        /// Which API key claimed the attempt that has the record.
        claimed_by?: Option<ClaimedBy>,
        /// A person has said that the operation succeeded.
        resolved?: Option<ResolutionAnswer>,
        /// When the attempt began.
        started_at?: Option<DateTime>,
        /// When the lease of the attempt ends, or until when the success is kept.
        expires_at?: Option<DateTime>,
        /// What is left until then, in ms.
        ttl_ms?: Option<u64>,
        /// The result of the operation, as posted; null if there is none.
        #[schema(value_type = Value)]
        result?: Option<Value>,
        /// The result was longer than 64 KiB and was dropped.
        result_omitted?: Option<bool>,
        /// The success is kept forever.
        permanent?: Option<bool>,
        /// What is left of the hold-off, in ms.
        hold_off_ms?: Option<u64>,
        /// The outcome that remains.
        recorded?: Option<Report>,
        /// How many superseded attempts have posted a success, too.
        suspected_double_runs?: Option<u32>,
        /// In a batch, the answer to each operation: its `status`, and the fields of a pre that may proceed or of a problem.
        items?: Option<Vec<Map<String, Value>>>,
    }
}

/// The codes of all problems.
pub struct ProblemCode;

impl ToSchema for ProblemCode {}

impl PartialSchema for ProblemCode {
    fn schema() -> RefOr<Schema> {
        let names = Code::ALL.iter().map(|code| code.info().name);
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
    }
}

/// Why a lease has ended, or the outcome of an operation is not known.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "described, not built")]
enum Why {
    Expired,
    Released,
    Revoked,
    Forced,
    /// The key has no record of the lease.
    Unknown,
    /// The attempt let its lease pass without a post.
    LeasePassed,
    /// The attempt posted `unknown`.
    Reported,
    /// The store may have lost the record.
    RecordMayBeLost,
}
