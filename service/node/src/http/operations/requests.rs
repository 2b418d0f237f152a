//! Bodies and queries of requests about operations, and their rules.

use std::sync::Arc;

use latchgate_core::Timestamp;
use latchgate_core::access::has_api_key;
use latchgate_core::gate::{
    AttemptId, CONTENTS_KEPT_MAX_BYTES, Canonical, ContentsError, Description, Durability, Fingerprint, Label,
    OnExpiry, OperationName, Post, Report, Resolution, Resolve, Retention, Sha256Digest, Stamp, State, check_result,
};
use latchgate_core::lock::Note;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::format::{YEAR_MS, parse_rfc3339, queries, requests};
use crate::gate::fresh_stamp;
use crate::gate::{ByTime, PreCall};
use crate::http::body::without_position;
use crate::http::call::Call;
use crate::http::context::{Context, OPERATION_TTL_MS_DEFAULT, OPERATION_TTL_MS_MIN, RETENTION_MS_MIN};
use crate::http::locks::fields::{check_no_api_key, parse_metadata, parse_note};
use crate::http::problem::{Code, Problem, within};
use crate::http::query::page_limit;
use crate::store::Filter;

/// Most operations in one batch.
pub const BATCH_MAX: usize = 100;
/// How much of a detail is kept.
const DETAIL_MAX_BYTES: usize = 2 * 1024;

requests! {
    #[schema(example = json!({"operation": "charge", "contents": {"order": 42, "amount": "19.90"}}))]
    pub struct PreRequest {
        /// The kind of work. Part of the id.
        #[schema(example = "charge", max_length = 256, min_length = 1)]
        operation: String,
        /// What the work is about: a string or any JSON, but not one of nothing but nulls and empty texts, objects and lists. The same contents
        /// have the same id, in any order of keys.
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
        keep_contents: Option<bool>,
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
        on_expiry: Option<OnExpiry>,
        /// How durable the claim is.
        durability: Option<Durability>,
        /// How long a success is kept, in ms, unless its post says otherwise: 1 000 to a year; a day if absent, unless configured otherwise.
        #[schema(example = 86_400_000, minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
        /// Keep a success forever.
        permanent: Option<bool>,
        /// For contents that name a period: how long from now they are in use, in ms; 1 000 to a year. Afterwards the record is forgotten also if
        /// its outcome is unknown or its lease has passed, so that no person must decide it. For ever if absent.
        #[schema(minimum = 1, maximum = 3_153_600_000_000_u64)]
        ends_in_ms: Option<u64>,
    }

    #[schema(example = json!({"operation": "charge", "contents": {"order": 46}, "attempt_id": "that of the pre",
        "ran_at": "2026-11-20T10:37:51Z", "result": {"receipt": 9}}))]
    pub struct EnterRequest {
        /// As in the pre.
        #[schema(example = "charge", max_length = 256, min_length = 1)]
        operation: String,
        /// As in the pre.
        #[serde(default)]
        #[schema(value_type = Value)]
        contents: Option<Box<RawValue>>,
        /// As in the pre; kept, and not compared.
        #[schema(value_type = Option<Value>)]
        checked: Option<Box<RawValue>>,
        /// That of the pre that had no answer. Two entries with the same one are one run, so that an entry whose answer was lost can be
        /// repeated; if that pre had claimed the operation after all, this is its end.
        #[schema(max_length = 256, min_length = 1)]
        attempt_id: String,
        /// When the work began, by the client's clock.
        #[schema(format = DateTime, min_length = 20, max_length = 64)]
        ran_at: String,
        /// As in a post.
        #[schema(value_type = Option<Value>)]
        result: Option<Box<RawValue>>,
        /// As in a post.
        result_omitted: Option<bool>,
        /// As in the pre.
        #[schema(max_length = 256, min_length = 1)]
        label: Option<String>,
        /// As in the pre.
        #[schema(value_type = Option<Object>)]
        metadata: Option<Map<String, Value>>,
        /// As in the pre.
        durability: Option<Durability>,
        /// As in the pre.
        #[schema(minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
        /// As in the pre.
        permanent: Option<bool>,
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
        /// As in a pre.
        #[serde(default)]
        #[schema(value_type = Value)]
        contents: Option<Box<RawValue>>,
    }

    #[schema(example = json!({"stamp": "ed00c3a34ce12df209e466feee905cbd", "outcome": "success", "result": {"receipt": 7}}))]
    pub struct PostRequest {
        /// From the answer to pre.
        #[schema(min_length = 32, max_length = 32)]
        stamp: String,
        outcome: Report,
        /// Any JSON; later requests for this operation get it. Kept for a success only. A result that is longer than 64 KiB, nested deeper than
        /// 64 levels, or no JSON for other readers is dropped, and `result_omitted` is true: the success is recorded all the same.
        #[schema(value_type = Option<Value>)]
        result: Option<Box<RawValue>>,
        /// There is a result that cannot be sent.
        result_omitted: Option<bool>,
        /// What a person needs who must decide: exit code, last lines, exception. Kept with the outcome `unknown` and shown with it; cut after
        /// 2 KiB.
        #[schema(min_length = 0, max_length = 65_536)]
        detail: Option<String>,
        /// How long a success is kept, in ms: 1 000 to a year unless configured otherwise; if absent, as the pre said.
        #[schema(example = 86_400_000, minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
        /// Keep a success forever.
        permanent: Option<bool>,
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
        /// How long a success is kept, in ms: 1 000 to a year unless configured otherwise; if absent, as the pre said.
        #[schema(example = 86_400_000, minimum = 1, maximum = 3_153_600_000_000_u64)]
        retention_ms: Option<u64>,
    }

    #[schema(example = json!({"stamp": "ed00c3a34ce12df209e466feee905cbd"}))]
    pub struct HeartbeatRequest {
        /// From the answer to pre.
        #[schema(min_length = 32, max_length = 32)]
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
            contents: self.keep_contents.unwrap_or_default().then(|| kept(&contents)).transpose()?,
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
            on_expiry: self.on_expiry.unwrap_or_default(),
            durability: self.durability.unwrap_or_default(),
            retention: parse_retention(self.retention_ms, self.permanent.unwrap_or_default())?
                .unwrap_or(Retention::Ms(call.context.limits.retention_ms_default)),
            ends_in_ms: self.ends_in_ms.map(|ms| within("ends_in_ms", ms, RETENTION_MS_MIN..=YEAR_MS)).transpose()?,
            description: description.into_stored(),
        })
    }
}

impl EnterRequest {
    /// What its pre would have been, the report of the run, and when it began.
    pub fn parse(self, call: &Call) -> Result<(PreCall, Post, Timestamp), Problem> {
        let ran_at =
            parse_rfc3339(&self.ran_at).ok_or_else(|| Problem::field("ran_at", "must be a time in RFC 3339"))?;
        let (result, result_omitted) = kept_result(self.result, self.result_omitted.unwrap_or_default());
        let pre = PreRequest {
            operation: self.operation,
            contents: self.contents,
            checked: self.checked,
            attempt_id: Some(self.attempt_id),
            label: self.label,
            metadata: self.metadata,
            keep_contents: None,
            ttl_ms: None,
            wait_ms: None,
            on_expiry: None,
            durability: self.durability,
            retention_ms: self.retention_ms,
            permanent: self.permanent,
            ends_in_ms: None,
        };
        let pre = pre.parse(call)?;
        let stamp = pre.attempt_id.as_ref().map_or_else(fresh_stamp, Stamp::of_run);
        Ok((pre, Post { result, result_omitted, ..Post::new(stamp, Report::Success) }, ran_at))
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
    pub fn parse(self) -> Result<Post, Problem> {
        let stamp = parse_stamp(&self.stamp)?;
        let retention = parse_retention(self.retention_ms, self.permanent.unwrap_or_default())?;
        let (result, result_omitted) = kept_result(self.result, self.result_omitted.unwrap_or_default());
        let detail = self.detail.as_deref().map(kept_detail);
        Ok(Post { stamp, report: self.outcome, result, result_omitted, detail, retention })
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
            retention: parse_retention(self.retention_ms, false)?,
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

/// The result for the record, and whether there is one that it cannot have: what comes after the work is not refused for it.
fn kept_result(result: Option<Box<RawValue>>, is_omitted: bool) -> (Option<Arc<str>>, bool) {
    let is_kept = result.as_ref().is_none_or(|result| check_result("result", result.get().as_bytes()).is_ok());
    (result.filter(|_| is_kept).map(|result| result.get().into()), is_omitted || !is_kept)
}

/// As much of a text as is kept. Control characters could not be stored everywhere, or would act on a terminal.
fn kept_detail(text: &str) -> Arc<str> {
    if has_api_key(text) {
        return "(withheld: it contains an API key)".into();
    }
    let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    text[..text.floor_char_boundary(DETAIL_MAX_BYTES)].into()
}

/// `None` if the request does not say.
fn parse_retention(retention_ms: Option<u64>, is_permanent: bool) -> Result<Option<Retention>, Problem> {
    match retention_ms {
        Some(_) if is_permanent => Err(Problem::field("retention_ms", "is not allowed with permanent")),
        Some(ms) => within("retention_ms", ms, RETENTION_MS_MIN..=YEAR_MS).map(|ms| Some(Retention::Ms(ms))),
        None => Ok(is_permanent.then_some(Retention::Forever)),
    }
}

impl HeartbeatRequest {
    pub fn parse(&self, context: &Context) -> Result<(Stamp, Option<u64>), Problem> {
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

/// A null is refused like all that says nothing: it is more often a missing value than a meant one, and unrelated operations would
/// share one id.
fn parse_contents(contents: Option<&RawValue>) -> Result<Canonical, Problem> {
    let contents = contents.map_or("null", RawValue::get);
    Canonical::parse_identity("contents", contents.as_bytes()).map_err(refused_json)
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
        | ContentsError::TooLong { path, .. }
        | ContentsError::SaysNothing { path } => problem.with("field", path),
    }
}

fn parse_stamp(text: &str) -> Result<Stamp, Problem> {
    text.parse().map_err(|_| Problem::field("stamp", "must be the stamp from the answer to a pre"))
}

fn check_ttl(context: &Context, ttl_ms: u64) -> Result<u64, Problem> {
    within("ttl_ms", ttl_ms, OPERATION_TTL_MS_MIN..=context.limits.operation_ttl_ms_max)
}
