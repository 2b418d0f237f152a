//! Bodies and queries about operations, and what they ask.

use std::time::Duration;

use latchgate_core::gate::{
    AttemptId, Canonical, ContentsError, Durability, Fingerprint, OnExpiry, OperationName, Report, Sha256Digest, State,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::http::problem::{Code, Problem};
use crate::http::{Context, query};
use crate::runtime::operations::{OnOutage, PostAsk, PreAsk, StampText};
use crate::store::gate::Filter;

/// Most operations in one batch.
pub const BATCH_MAX: usize = 100;
const LIST_LIMIT_DEFAULT: usize = 100;
const LIST_LIMIT_MAX: usize = 1_000;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreRequest<'a> {
    /// What kind of work it is; at most 256 bytes. Part of the id.
    #[schema(example = "charge", max_length = 256)]
    operation: String,
    /// What it is about: a string or any JSON but null. Same contents, same id, whatever the order of keys. If absent, the
    /// header `Idempotency-Key` stands in.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Value>)]
    pub contents: Option<&'a RawValue>,
    /// What must be equal in every call about this operation but is not part of its id, an amount say: any JSON.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Value>)]
    checked: Option<&'a RawValue>,
    /// Your own fresh name for this attempt: if its answer was lost, the same call with the same name gets the same
    /// stamp. It is as good as the stamp: keep it to yourself. At most 256 bytes. Made up if absent.
    #[schema(max_length = 256)]
    attempt_id: Option<String>,
    /// How long the operation is yours before others may act on your silence, in ms: 1 000 to 86 400 000 unless
    /// configured otherwise; 60 000 if absent.
    #[schema(example = 60_000, minimum = 1)]
    lease_ms: Option<u64>,
    /// How long to wait for the end of another's attempt, in ms: up to 50 000 unless configured otherwise; 0, the
    /// default, does not wait. Not in a batch.
    #[schema(example = 0)]
    wait_ms: Option<u64>,
    /// What becomes of the operation when your lease passes without a post.
    #[serde(default)]
    on_expiry: OnExpiryName,
    /// What the claim survives.
    #[serde(default)]
    durability: DurabilityName,
    /// What to do when the gate's store does not answer.
    #[serde(default)]
    on_outage: OnOutageName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiryName {
    /// The next pre may go.
    #[default]
    Retry,
    /// Nobody may go until the outcome is known.
    Block,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityName {
    /// What the gate's first store survives.
    #[default]
    Fast,
    /// Claimed in a store that commits to disk.
    Durable,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOutageName {
    /// Nobody may go.
    #[default]
    Closed,
    /// Claim in the second store, and say so.
    Fallback,
    /// Go without a guard.
    Open,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest<'a> {
    /// 1 to 100 pres, without `wait_ms`.
    #[serde(borrow)]
    #[schema(min_items = 1, max_items = 100)]
    operations: Vec<PreRequest<'a>>,
    /// Claim none unless all may go; true if absent.
    all_or_nothing: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest<'a> {
    #[schema(example = "charge", max_length = 256)]
    operation: String,
    /// A string or any JSON but null.
    #[serde(borrow, default)]
    #[schema(value_type = Value)]
    contents: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PostRequest<'a> {
    /// From the answer to pre.
    stamp: String,
    outcome: OutcomeName,
    /// Any JSON, shown to whoever asks for this operation again. Kept for a success only; longer than 64 KiB it is
    /// dropped, and `result_omitted` says so.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Value>)]
    result: Option<&'a RawValue>,
    /// How long a success is kept, in ms: 1 000 to a year unless configured otherwise; a day if absent.
    #[schema(example = 86_400_000, minimum = 1)]
    retention_ms: Option<u64>,
    /// Keep a success for ever.
    #[serde(default)]
    permanent: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeName {
    /// It is done, and will not be done again.
    Success,
    /// It did not happen: the next pre may go at once.
    Failure,
    /// It may have happened: nobody may go until that is known.
    Unknown,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// From the answer to pre.
    stamp: String,
    /// The lease's length in ms, from now; as before if absent. A lease is never shortened.
    lease_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ForgetQuery {
    /// Forget it even while an attempt runs, or when its lease has passed and nobody knows how it ended.
    pub force: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct OperationsQuery {
    /// Only operations of this name.
    operation: Option<String>,
    /// Only operations in this state.
    #[param(inline)]
    state: Option<StateName>,
    /// Only operations of which a double run is suspected.
    suspect: bool,
    /// Most operations in the answer: 1 to 1 000; 100 if absent.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    Started,
    Succeeded,
    Unknown,
    /// Forgotten, and shown only because a double run is suspected.
    Vacant,
}

/// How a request's fields are called in problems: those of a batch's item by its place.
#[derive(Clone, Copy)]
struct Fields {
    item: Option<usize>,
}

impl Fields {
    fn name(self, field: &str) -> String {
        match self.item {
            Some(index) => format!("operations[{index}].{field}"),
            None => field.to_owned(),
        }
    }

    fn problem(self, field: &str, rule: impl std::fmt::Display) -> Problem {
        Problem::field(&self.name(field), rule)
    }
}

impl PreRequest<'_> {
    /// `stand_in` is taken for the contents when there are none.
    pub fn into_ask(self, context: &Context, stand_in: Option<&str>) -> Result<PreAsk, Problem> {
        self.ask(context, stand_in, Fields { item: None })
    }

    fn ask(self, context: &Context, stand_in: Option<&str>, fields: Fields) -> Result<PreAsk, Problem> {
        let operation = OperationName::parse(&self.operation).map_err(|error| fields.problem("operation", error))?;
        let contents = match (self.contents, stand_in) {
            (None, Some(text)) => Canonical::of_text(text),
            (contents, _) => parse_contents(contents, fields)?,
        };
        let checked = self.checked.map(|checked| parse_canonical(&fields.name("checked"), checked)).transpose()?;
        let attempt_id = match self.attempt_id {
            Some(text) => AttemptId::parse(&text).map_err(|error| fields.problem("attempt_id", error))?,
            None => made_up_attempt_id(),
        };
        let wait_ms = self.wait_ms.unwrap_or(0);
        if wait_ms > context.limits.wait_ms_max {
            return Err(fields.problem("wait_ms", format!("must be at most {}", context.limits.wait_ms_max)));
        }
        Ok(PreAsk {
            fingerprint: Fingerprint::of(&context.app, &operation, &contents),
            operation,
            checked: checked.map(|checked| Sha256Digest::of(checked.as_bytes())),
            attempt_id: Some(attempt_id),
            lease_ms: match self.lease_ms {
                Some(lease_ms) => check_lease(context, lease_ms, fields)?,
                None => context.limits.operations.lease_ms_default,
            },
            wait: Duration::from_millis(wait_ms),
            on_expiry: self.on_expiry.into(),
            durability: self.durability.into(),
            on_outage: self.on_outage.into(),
        })
    }
}

impl BatchRequest<'_> {
    /// The pres, and whether none is to be claimed unless all may go.
    pub fn into_asks(self, context: &Context) -> Result<(Vec<PreAsk>, bool), Problem> {
        if self.operations.is_empty() || self.operations.len() > BATCH_MAX {
            return Err(Problem::field(
                "operations",
                format!("must be 1 to {BATCH_MAX}, not {}", self.operations.len()),
            ));
        }
        let all_or_nothing = self.all_or_nothing.unwrap_or(true);
        let mut asks: Vec<PreAsk> = Vec::with_capacity(self.operations.len());
        for (index, request) in self.operations.into_iter().enumerate() {
            let fields = Fields { item: Some(index) };
            if request.wait_ms.is_some() {
                return Err(fields.problem("wait_ms", "must not be there: a batch does not wait"));
            }
            let ask = request.ask(context, None, fields)?;
            let twin = asks.iter().position(|other| other.fingerprint == ask.fingerprint);
            // Of two claims of one operation one is refused, and with it always the whole batch.
            if let Some(twin) = twin.filter(|_| all_or_nothing) {
                return Err(fields.problem("contents", format!("are those of operations[{twin}]: name it once")));
            }
            asks.push(ask);
        }
        Ok((asks, all_or_nothing))
    }
}

impl PreviewRequest<'_> {
    pub fn parse(&self) -> Result<(OperationName, Canonical), Problem> {
        let fields = Fields { item: None };
        let operation = OperationName::parse(&self.operation).map_err(|error| fields.problem("operation", error))?;
        Ok((operation, parse_contents(self.contents, fields)?))
    }
}

impl PostRequest<'_> {
    pub fn into_ask(self, context: &Context) -> Result<(StampText, PostAsk), Problem> {
        let stamp = parse_stamp(&self.stamp)?;
        let limits = &context.limits.operations;
        if self.permanent && self.retention_ms.is_some() {
            return Err(Problem::field("retention_ms", "must not be there when the success is permanent"));
        }
        let retention_ms = self.retention_ms.unwrap_or(limits.retention_ms_default);
        let (min, max) = (limits.retention_ms_min, limits.retention_ms_max);
        if !(min..=max).contains(&retention_ms) {
            return Err(Problem::field("retention_ms", format!("must be {min} to {max}")));
        }
        let result = self.result.map(|result| result.get().into());
        Ok((stamp, PostAsk { report: self.outcome.into(), result, retention_ms, permanent: self.permanent }))
    }
}

impl HeartbeatRequest {
    pub fn parse(&self, context: &Context) -> Result<(StampText, Option<u64>), Problem> {
        let check = |lease_ms| check_lease(context, lease_ms, Fields { item: None });
        Ok((parse_stamp(&self.stamp)?, self.lease_ms.map(check).transpose()?))
    }
}

impl OperationsQuery {
    /// What to show, and how many.
    pub fn parse(&self) -> Result<(Filter, usize), Problem> {
        let limit = query::page_limit(self.limit, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX)?;
        let operation = self.operation.as_deref().map(OperationName::parse).transpose();
        let operation = operation.map_err(|error| Problem::field("operation", error))?;
        Ok((Filter { operation, state: self.state.map(State::from), suspect: self.suspect }, limit))
    }
}

/// A null is a value that was forgotten more often than one that was meant, and would make strangers share one id.
fn parse_contents(contents: Option<&RawValue>, fields: Fields) -> Result<Canonical, Problem> {
    match contents {
        Some(contents) => parse_canonical(&fields.name("contents"), contents),
        None => Err(fields.problem("contents", "must be there: a string or any JSON but null")),
    }
}

fn parse_canonical(field: &str, json: &RawValue) -> Result<Canonical, Problem> {
    Canonical::parse(field, json.get().as_bytes()).map_err(|error| {
        let problem = Problem::new(Code::InvalidRequest, error.to_string());
        match error {
            ContentsError::NotJson { path, .. }
            | ContentsError::DuplicateKey { path }
            | ContentsError::NumberTooLarge { path }
            | ContentsError::TooDeep { path, .. }
            | ContentsError::TooLong { path, .. } => problem.with("field", path),
        }
    })
}

fn parse_stamp(text: &str) -> Result<StampText, Problem> {
    StampText::from_text(text).ok_or_else(|| Problem::field("stamp", "must be the stamp that a pre gave"))
}

fn check_lease(context: &Context, lease_ms: u64, fields: Fields) -> Result<u64, Problem> {
    let (min, max) = (context.limits.operations.lease_ms_min, context.limits.operations.lease_ms_max);
    if (min..=max).contains(&lease_ms) {
        Ok(lease_ms)
    } else {
        Err(fields.problem("lease_ms", format!("must be {min} to {max}")))
    }
}

/// Without one, a claim whose answer is lost could not be asked for again.
fn made_up_attempt_id() -> AttemptId {
    let mut buffer = uuid::Uuid::encode_buffer();
    let text = uuid::Uuid::new_v4().simple().encode_lower(&mut buffer);
    AttemptId::parse(text).expect("a UUID is an attempt id")
}

impl From<OnExpiryName> for OnExpiry {
    fn from(name: OnExpiryName) -> Self {
        match name {
            OnExpiryName::Retry => Self::Retry,
            OnExpiryName::Block => Self::Block,
        }
    }
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Self {
        match name {
            DurabilityName::Fast => Self::Fast,
            DurabilityName::Durable => Self::Durable,
        }
    }
}

impl From<OnOutageName> for OnOutage {
    fn from(name: OnOutageName) -> Self {
        match name {
            OnOutageName::Closed => Self::Closed,
            OnOutageName::Fallback => Self::Fallback,
            OnOutageName::Open => Self::Open,
        }
    }
}

impl From<OutcomeName> for Report {
    fn from(name: OutcomeName) -> Self {
        match name {
            OutcomeName::Success => Self::Success,
            OutcomeName::Failure => Self::Failure,
            OutcomeName::Unknown => Self::Unknown,
        }
    }
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Started => Self::Started,
            StateName::Succeeded => Self::Succeeded,
            StateName::Unknown => Self::Unknown,
            StateName::Vacant => Self::Vacant,
        }
    }
}
