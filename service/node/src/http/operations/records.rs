//! Operations as clients see them in inspections and listings.

use latchgate_core::gate::{Description, Durability, Label, OnExpiry, Outcome, Phase, Resolution, State, Succeeded};
use latchgate_core::{App, Timestamp};
use serde_json::value::RawValue;

use crate::access::Access;
use crate::format::{DateTime, answers, rfc3339};
use crate::gate::Shown;
use crate::http::problem::Problem;

answers! {
    /// An operation as other clients see it: without its stamp and attempt id.
    pub struct OperationAnswer {
        /// Only in a listing of all apps.
        app?: Option<String>,
        id: String,
        operation: String,
        /// `vacant`: deleted, and shown only because a double run is suspected.
        state: State,
        attempt: u32,
        /// When the first attempt began.
        created_at: DateTime,
        /// In state `started`: when this attempt began.
        started_at?: Option<DateTime>,
        /// When its outcome was posted, or the operation became `unknown`.
        ended_at?: Option<DateTime>,
        /// As posted. Absent in listings.
        #[schema(value_type = Value)]
        result?: Option<Box<RawValue>>,
        /// The result was longer than 64 KiB, or could not be stored, and was dropped.
        result_omitted?: bool,
        /// In state `unknown`: what the attempt posted for a person who must decide.
        detail?: Option<String>,
        #[serde(flatten)]
        expiry: Expiry,
        /// As the attempt that has the record gave it.
        label?: Option<String>,
        /// As the attempt that has the record gave it.
        #[schema(value_type = Object)]
        metadata?: Option<Box<RawValue>>,
        /// In canonical JSON, if the attempt that has the record requested `keep_contents`. Absent in listings.
        #[schema(value_type = Value)]
        contents?: Option<Box<RawValue>>,
        /// Which API key claimed the attempt that has the record; absent if its client needed none.
        claimed_by?: Option<ClaimedBy>,
        /// A person has said that the attempt succeeded; absent if it said so itself.
        resolved?: Option<ResolutionAnswer>,
        /// What happens when the lease passes.
        on_expiry: OnExpiry,
        durability: Durability,
        /// How many superseded attempts have posted a success: the operation may have been done that many times too often.
        suspected_double_runs: u32,
    }

    pub struct ClaimedBy {
        app: String,
        /// The id of the API key.
        api_key: String,
        /// What the API key is for, as the operator who created it said. Absent in refusals.
        #[schema(example = "billing workers")]
        name?: Option<String>,
    }

    pub struct ResolutionAnswer {
        reason: String,
        /// The name that the operator gave.
        by?: Option<String>,
        /// The id of the operator's API key; absent if the client needed none.
        api_key?: Option<String>,
    }

    /// One page of operations.
    pub struct OperationsAnswer {
        pub operations: Vec<OperationAnswer>,
        /// The ids of operations between those whose record in the store cannot be read: see the error `state-unreadable`. If `app` is `*`,
        /// each is a JSON list of the app and the id.
        /// `DELETE /v1/operations/{id}?force=true` removes one.
        pub unreadable?: Vec<String>,
        /// Send it as `cursor` for the next page; absent on the last. Pages before the last may be short or empty.
        pub next_cursor?: Option<String>,
        /// With `sort`: there are more operations than one request looks through (up to 80 000), so that earlier or later ones may be missing.
        pub incomplete?: bool,
    }

    /// How long an attempt or a success lasts.
    #[derive(Default)]
    pub struct Expiry {
        /// When the lease ends unless renewed; of a success, until when it is kept; of an unknown outcome, until when it must be decided, if ever.
        expires_at?: Option<DateTime>,
        /// What is left until then, in ms, at the time of this answer; 0 once the lease has passed.
        ttl_ms?: Option<u64>,
        /// The success is kept forever.
        permanent?: bool,
    }
}

/// A record with its result and its contents.
pub fn operation(shown: &Shown, access: &Access) -> OperationAnswer {
    let result = match &shown.record.phase {
        Phase::Succeeded(Succeeded { result, .. }) => raw(result.as_deref()),
        _ => None,
    };
    let contents = shown.record.description.as_ref().and_then(|description| raw(description.contents.as_deref()));
    OperationAnswer { result, contents, ..listed(shown, None, access) }
}

/// A record without its result and its contents: a page of them would be large.
pub fn listed(Shown { address, record, now }: &Shown, app: Option<String>, access: &Access) -> OperationAnswer {
    let (started_at, ended_at, expiry) = match &record.phase {
        Phase::Started(started) => (Some(started.at), None, until(Some(started.lease_until), *now)),
        Phase::Succeeded(succeeded) => (None, Some(succeeded.at), until(succeeded.keep_until, *now)),
        Phase::Unknown { at, .. } => {
            (None, Some(*at), record.ends_at.map(|at| until(Some(at), *now)).unwrap_or_default())
        }
        Phase::Vacant { .. } => (None, None, Expiry::default()),
    };
    let description = record.description.as_deref();
    OperationAnswer {
        app,
        id: address.id.to_string(),
        operation: record.operation.as_str().to_owned(),
        state: record.state(),
        attempt: record.attempt,
        created_at: rfc3339(record.created_at),
        started_at: started_at.map(rfc3339),
        ended_at: ended_at.map(rfc3339),
        result: None,
        detail: match &record.phase {
            Phase::Unknown { detail, .. } => detail.as_deref().map(str::to_owned),
            _ => None,
        },
        result_omitted: matches!(&record.phase, Phase::Succeeded(Succeeded { result_omitted: true, .. })),
        expiry,
        label: description.and_then(label),
        metadata: description.and_then(metadata),
        contents: None,
        resolved: match &record.phase {
            Phase::Succeeded(Succeeded { resolved: Some(resolved), .. }) => Some(ResolutionAnswer::from(&**resolved)),
            _ => None,
        },
        claimed_by: description.and_then(|description| {
            let name = access.name_of(description.api_key?);
            Some(ClaimedBy { name, ..ClaimedBy::of(&address.app, description)? })
        }),
        on_expiry: record.on_expiry,
        durability: record.durability,
        suspected_double_runs: record.double_runs,
    }
}

/// Says in a refusal which attempt has the record. The contents are left out: the client has sent the same.
pub fn describe(problem: Problem, app: &App, outcome: &Outcome, description: Option<&Description>) -> Problem {
    let is_of_attempt = matches!(outcome, Outcome::InProgress { .. } | Outcome::Duplicate(_) | Outcome::Unknown { .. });
    let Some(description) = description.filter(|_| is_of_attempt) else { return problem };
    problem
        .with_some("label", label(description))
        .with_some("metadata", metadata(description))
        .with_some("claimed_by", ClaimedBy::of(app, description))
}

impl From<&Resolution> for ResolutionAnswer {
    fn from(Resolution { reason, by, api_key }: &Resolution) -> Self {
        let (by, api_key) = (by.as_deref().map(str::to_owned), api_key.map(|id| id.to_string()));
        Self { reason: (**reason).to_owned(), by, api_key }
    }
}

impl ClaimedBy {
    fn of(app: &App, description: &Description) -> Option<Self> {
        let api_key = description.api_key?.to_string();
        Some(Self { app: app.as_str().to_owned(), api_key, name: None })
    }
}

fn label(description: &Description) -> Option<String> {
    description.label.as_ref().map(|label| Label::as_str(label).to_owned())
}

fn metadata(description: &Description) -> Option<Box<RawValue>> {
    raw(description.metadata.as_deref())
}

/// `None` is for ever.
pub fn until(end: Option<Timestamp>, now: Timestamp) -> Expiry {
    Expiry { expires_at: end.map(rfc3339), ttl_ms: end.map(|end| end.ms_since(now)), permanent: end.is_none() }
}

/// A result in the very JSON that was posted.
pub fn raw(json: Option<&str>) -> Option<Box<RawValue>> {
    json.and_then(|json| RawValue::from_string(json.to_owned()).ok())
}
