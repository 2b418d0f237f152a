//! Bodies and queries of requests about operations, and their rules.

use std::sync::Arc;

use latchgate_core::gate::{
    AttemptId, CONTENTS_KEPT_MAX_BYTES, Canonical, ContentsError, Description, Durability, Fingerprint, Label,
    OnExpiry, OperationName, Report, Resolution, Resolve, Sha256Digest, State, check_result,
};
use latchgate_core::lock::Note;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::config::YEAR_MS;
use crate::format::{queries, requests};
use crate::gate::{ByTime, OnOutage, PostCall, PreCall, StampText};
use crate::http::body::without_position;
use crate::http::call::Call;
use crate::http::context::{Context, OPERATION_TTL_MS_DEFAULT, OPERATION_TTL_MS_MIN, RETENTION_MS_MIN};
use crate::http::locks::fields::{check_no_api_key, parse_metadata, parse_note};
use crate::http::problem::{Code, Problem, within};
use crate::http::query::page_limit;
use crate::store::gate::Filter;

/// Most operations in one batch.
pub const BATCH_MAX: usize = 100;

requests! {
    #[schema(example = json!({"operation": "charge", "contents": {"order": 42, "amount": "19.90"}}))]
    pub struct PreRequest {
        /// The kind of work. Part of the id.
        #[schema(example = "charge", max_length = 256, min_length = 1)]
        operation: String,
        /// What the work is about: a string or any JSON but null. The same contents have the same id, in any order of keys.
        #[serde(default)]
        #[schema(value_type = Value)]
        contents: Option<Box<RawValue>>,
        /// Any JSON that must be equal in every pre of this operation but is not part of its id, for example an amount.
        #[schema(value_type = Option<Value>)]
        checked: Option<Box<RawValue>>,
        /// A new random id for this attempt. If the answer is lost, a repeated request with the same id gets the same stamp. Keep
        /// it as secret as the stamp. The server makes one if absent.
        #[schema(max_length = 256, min_length = 1)]
        attempt_id: Option<String>,
        /// A line about this attempt for people: who runs it and what it does. Kept with the record and shown with it.
        #[schema(example = "billing-7: invoice 42", max_length = 256, min_length = 1)]
        label: Option<String>,
        /// A JSON object of at most 1 KiB about this attempt, kept with the record and shown with it.
        #[schema(value_type = Option<Object>)]
        metadata: Option<Map<String, Value>>,
        /// Keep the canonical contents with the record, so that a person can read them; at most 16 KiB. They are shown to all API keys of the
        /// app with the scope `read`.
        #[serde(default)]
        keep_contents: bool,
        /// Length of the lease, in ms: without a post or a heartbeat, `on_expiry` applies after it. 1 000 to 86 400 000 unless
        /// configured otherwise; 60 000 if absent.
        #[schema(example = 60_000, minimum = 1, maximum = 31_536_000_000_u64)]
        ttl_ms: Option<u64>,
        /// How long to wait for the end of another attempt, in ms: up to 50 000 unless configured otherwise. 0, the default, does
        /// not wait. Not allowed in a batch.
        #[schema(example = 0, maximum = 86_400_000)]
        wait_ms: Option<u64>,
        /// What happens when the lease passes without a post. `block` if absent: no second run begins by itself, not even behind a worker
        /// that is slower than its lease. Work that may be repeated says `retry`.
        #[serde(default)]
        on_expiry: OnExpiry,
        /// How durable the claim is.
        #[serde(default)]
        durability: Durability,
        /// What to do when the gate's store does not answer.
        #[serde(default)]
        on_outage: OnOutage,
    }

    #[schema(example = json!({"operations": [
        {"operation": "charge", "contents": {"order": 43, "amount": "5.00"}},
        {"operation": "send-mail", "contents": "order-43-confirmation"},
    ]}))]
    pub struct BatchRequest {
        /// 1 to 100 pres, without `wait_ms`.
        #[schema(min_items = 1, max_items = 100)]
        #[serde(deserialize_with = "crate::objects::objects")]
        operations: Vec<PreRequest>,
        /// Claim all operations or none; true if absent.
        all_or_nothing: Option<bool>,
    }

    #[schema(example = json!({"operation": "charge", "contents": {"order": 42, "amount": "19.90"}}))]
    pub struct PreviewRequest {
        #[schema(example = "charge", max_length = 256, min_length = 1)]
        operation: String,
        /// A string or any JSON but null.
        #[serde(default)]
        #[schema(value_type = Value)]
        contents: Option<Box<RawValue>>,
    }

    #[schema(example = json!({"stamp": "the stamp that the pre gave", "outcome": "success", "result": {"receipt": 7}}))]
    pub struct PostRequest {
        /// From the answer to pre.
        #[schema(min_length = 1, max_length = 2048)]
        stamp: String,
        outcome: Report,
        /// Any JSON, nested at most 64 levels deep; later requests for this operation get it. Kept for a success only. A result longer
        /// than 64 KiB is dropped, and `result_omitted` is true.
        #[schema(value_type = Option<Value>)]
        result: Option<Box<RawValue>>,
        /// How long a success is kept, in ms: 1 000 to a year unless configured otherwise; a day if absent.
        #[schema(example = 86_400_000, minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
        /// Keep a success forever.
        #[serde(default)]
        permanent: bool,
    }

    #[schema(example = json!({"outcome": "success", "result": {"receipt": 7}, "reason": "the bank has the transfer", "by": "ann"}))]
    pub struct ResolveRequest {
        /// What you have found out: `success`, the work was done; or `failure`, it was not, and the next pre may proceed.
        outcome: FoundOut,
        /// Any JSON, nested at most 64 levels deep; later requests for this operation get it. Only with a success. A result longer than 64 KiB
        /// is dropped, and `result_omitted` is true.
        #[schema(value_type = Option<Value>)]
        result: Option<Box<RawValue>>,
        /// How you know it. Kept with a success, and in the audit record.
        #[schema(example = "the bank has the transfer", max_length = 512, min_length = 1)]
        reason: String,
        /// Your name.
        #[schema(example = "ann", max_length = 256, min_length = 1)]
        by: Option<String>,
        /// How long a success is kept, in ms: 1 000 to a year unless configured otherwise; a day if absent.
        #[schema(example = 86_400_000, minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
    }

    #[schema(example = json!({"stamp": "the stamp that the pre gave"}))]
    pub struct HeartbeatRequest {
        /// From the answer to pre.
        #[schema(min_length = 1, max_length = 2048)]
        stamp: String,
        /// The lease's length in ms, from now; its current length if absent. A lease is never shortened.
        #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
        ttl_ms: Option<u64>,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundOut {
    Success,
    Failure,
}

queries! {
    pub struct OperationQuery {
        /// Wait while an attempt runs, at most for this long in ms; as `wait_ms` of a pre. Then 200 only if the operation has succeeded; any
        /// other answer is that of a pre which may not proceed. Nothing is claimed.
        #[param(maximum = 86_400_000)]
        pub wait_ms: Option<u64>,
    }

    pub struct ForgetQuery {
        /// Delete the record even if an attempt is started or the outcome is unknown.
        pub force: bool,
    }

    pub struct OperationsQuery {
        /// Only operations of this name.
        #[param(min_length = 1, max_length = 256)]
        operation: Option<String>,
        /// Only operations in this state.
        #[param(inline)]
        state: Option<State>,
        /// Only operations with a suspected double run.
        suspect: bool,
        /// Only operations whose present state began at least so many ms ago.
        #[param(minimum = 0, maximum = 31_536_000_000_u64)]
        older_than_ms: Option<u64>,
        /// By the time at which their present state began: `oldest` or `newest` first. One page, without a cursor. If absent: all of them in
        /// the store's own order, page by page.
        #[param(inline)]
        pub sort: Option<ByTime>,
        /// Most operations in the answer: 1 to 1 000; 100 if absent.
        #[param(minimum = 1, maximum = 1_000)]
        limit: Option<usize>,
        /// `next_cursor` of the page before. Not with `sort`.
        #[param(min_length = 1, max_length = 2_048)]
        pub cursor: Option<String>,
    }
}

impl PreRequest {
    pub fn parse(self, call: &Call) -> Result<PreCall, Problem> {
        let operation = parse_operation(&self.operation)?;
        check_no_api_key("operation", operation.as_str())?;
        let contents = parse_contents(self.contents.as_deref())?;
        let checked = self.checked.as_deref().map(|checked| parse_canonical("checked", checked)).transpose()?;
        let label = self.label.as_deref().map(parse_label).transpose()?;
        let metadata = self.metadata.map(|fields| parse_metadata("metadata", fields)).transpose()?;
        let description = Description {
            label,
            metadata: metadata.map(|metadata| metadata.as_json_text().into()),
            contents: self.keep_contents.then(|| kept(&contents)).transpose()?,
            api_key: call.caller.key_id,
        };
        // Needed even if the client names none: the gate itself may have to repeat a claim whose answer was lost.
        let attempt_id = self.attempt_id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let attempt_id = AttemptId::parse(&attempt_id).map_err(|error| Problem::field("attempt_id", error))?;
        Ok(PreCall {
            fingerprint: Fingerprint::of(call.app(), &operation, &contents),
            operation,
            checked: checked.map(|checked| Sha256Digest::of(checked.as_bytes())),
            attempt_id: Some(attempt_id),
            lease_ms: match self.ttl_ms {
                Some(ttl_ms) => check_ttl(&call.context, ttl_ms)?,
                None => OPERATION_TTL_MS_DEFAULT.min(call.context.limits.operation_ttl_ms_max),
            },
            wait: call.context.wait(self.wait_ms),
            on_expiry: self.on_expiry,
            durability: self.durability,
            on_outage: self.on_outage,
            description: description.into_stored(),
        })
    }
}

impl BatchRequest {
    /// The pres, and whether to claim all or none.
    pub fn parse(self, call: &Call) -> Result<(Vec<PreCall>, bool), Problem> {
        within("operations", self.operations.len(), 1..=BATCH_MAX)?;
        let all_or_nothing = self.all_or_nothing.unwrap_or(true);
        let mut pres: Vec<PreCall> = Vec::with_capacity(self.operations.len());
        for (index, request) in self.operations.into_iter().enumerate() {
            let in_batch = |problem: Problem| problem.in_item(&format!("operations[{index}]."));
            if request.wait_ms.is_some() {
                return Err(in_batch(Problem::field("wait_ms", "is not allowed in a batch, which does not wait")));
            }
            let pre = request.parse(call).map_err(in_batch)?;
            let twin = pres.iter().position(|other| other.fingerprint == pre.fingerprint);
            // One of two claims of the same operation would always refuse the whole batch.
            if let Some(twin) = twin.filter(|_| all_or_nothing) {
                let rule = format!("are those of operations[{twin}]: name each operation once");
                return Err(in_batch(Problem::field("contents", rule)));
            }
            pres.push(pre);
        }
        Ok((pres, all_or_nothing))
    }
}

impl PreviewRequest {
    pub fn parse(&self) -> Result<(OperationName, Canonical), Problem> {
        Ok((parse_operation(&self.operation)?, parse_contents(self.contents.as_deref())?))
    }
}

impl PostRequest {
    pub fn parse(self, context: &Context) -> Result<(StampText, PostCall), Problem> {
        let stamp = parse_stamp(&self.stamp)?;
        if self.permanent && self.retention_ms.is_some() {
            return Err(Problem::field("retention_ms", "is not allowed with permanent"));
        }
        let retention_ms = parse_retention(context, self.retention_ms)?;
        let result = parse_result(self.result)?;
        Ok((stamp, PostCall { report: self.outcome, result, retention_ms, permanent: self.permanent }))
    }
}

impl ResolveRequest {
    pub fn parse(self, call: &Call) -> Result<Resolve, Problem> {
        let Note { reason, by } = parse_note(Some(&self.reason), self.by.as_deref())?;
        let has_succeeded = self.outcome == FoundOut::Success;
        if !has_succeeded && (self.result.is_some() || self.retention_ms.is_some()) {
            let field = if self.result.is_some() { "result" } else { "retention_ms" };
            return Err(Problem::field(field, "is allowed only with \"outcome\": \"success\""));
        }
        let resolution = Resolution {
            reason: reason.unwrap_or_default(),
            by: by.map(|by| by.as_str().into()),
            api_key: call.caller.key_id,
        };
        Ok(Resolve {
            has_succeeded,
            result: parse_result(self.result)?,
            retention_ms: parse_retention(&call.context, self.retention_ms)?,
            resolution: Arc::new(resolution),
        })
    }
}

fn parse_result(result: Option<Box<RawValue>>) -> Result<Option<Arc<str>>, Problem> {
    if let Some(result) = &result {
        check_result("result", result.get().as_bytes()).map_err(refused_json)?;
    }
    Ok(result.map(|result| result.get().into()))
}

fn parse_retention(context: &Context, retention_ms: Option<u64>) -> Result<u64, Problem> {
    within("retention_ms", retention_ms.unwrap_or(context.limits.retention_ms_default), RETENTION_MS_MIN..=YEAR_MS)
}

impl HeartbeatRequest {
    pub fn parse(&self, context: &Context) -> Result<(StampText, Option<u64>), Problem> {
        Ok((parse_stamp(&self.stamp)?, self.ttl_ms.map(|ttl_ms| check_ttl(context, ttl_ms)).transpose()?))
    }
}

impl OperationsQuery {
    /// The filter, and the most operations of the page.
    pub fn parse(&self) -> Result<(Filter, usize), Problem> {
        let limit = page_limit(self.limit)?;
        let operation = self.operation.as_deref().map(parse_operation).transpose()?;
        if self.sort.is_some() && self.cursor.is_some() {
            return Err(Problem::field("cursor", "must be absent with sort"));
        }
        let older_than_ms = within("older_than_ms", self.older_than_ms.unwrap_or(0), 0..=YEAR_MS)?;
        let (state, suspect) = (self.state, self.suspect);
        Ok((Filter { operation, state, suspect, older_than_ms }, limit))
    }
}

fn parse_operation(text: &str) -> Result<OperationName, Problem> {
    OperationName::parse(text).map_err(|error| Problem::field("operation", error))
}

fn parse_label(text: &str) -> Result<Label, Problem> {
    check_no_api_key("label", text)?;
    Label::parse(text).map_err(|error| Problem::field("label", error))
}

/// The contents for the record. Longer ones are refused: to drop them would hide from a person what they have counted on.
fn kept(contents: &Canonical) -> Result<Arc<str>, Problem> {
    let bytes = contents.as_bytes();
    if bytes.len() > CONTENTS_KEPT_MAX_BYTES {
        let rule = format!(
            "must be at most {CONTENTS_KEPT_MAX_BYTES} bytes of canonical JSON with keep_contents, not {}",
            bytes.len()
        );
        return Err(Problem::field("contents", rule));
    }
    let text = String::from_utf8_lossy(bytes);
    check_no_api_key("contents", &text)?;
    Ok(text.into())
}

/// A null is refused: it is more often a missing value than a meant one, and unrelated operations would share one id.
fn parse_contents(contents: Option<&RawValue>) -> Result<Canonical, Problem> {
    let contents = contents.ok_or_else(|| Problem::field("contents", "must be a string or any JSON but null"))?;
    parse_canonical("contents", contents)
}

fn parse_canonical(field: &str, json: &RawValue) -> Result<Canonical, Problem> {
    Canonical::parse(field, json.get().as_bytes()).map_err(refused_json)
}

fn refused_json(error: ContentsError) -> Problem {
    let detail = error.to_string();
    let problem = Problem::new(Code::InvalidRequest, without_position(&detail));
    match error {
        ContentsError::NotJson { path, .. }
        | ContentsError::DuplicateKey { path }
        | ContentsError::NumberNotExact { path }
        | ContentsError::NumberOutOfRange { path }
        | ContentsError::TooDeep { path, .. }
        | ContentsError::TooLong { path, .. } => problem.with("field", path),
    }
}

fn parse_stamp(text: &str) -> Result<StampText, Problem> {
    StampText::from_text(text).ok_or_else(|| Problem::field("stamp", "must be the stamp from the answer to a pre"))
}

fn check_ttl(context: &Context, ttl_ms: u64) -> Result<u64, Problem> {
    within("ttl_ms", ttl_ms, OPERATION_TTL_MS_MIN..=context.limits.operation_ttl_ms_max)
}
