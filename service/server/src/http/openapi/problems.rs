//! The problems of an operation: the description of a response names its codes, and the schema is made from them. Each code has a
//! schema of its own.

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::openapi::{KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::http::locks::answers::{Holder, LostWhy};
use crate::http::multilocks::LostKey;
use crate::http::operations::OutcomeName;
use crate::http::problem::{Code, CodeInfo, ProblemBody};
use crate::http::terraform::LockInfo;

/// The codes that a text names in backticks.
pub fn codes_in(text: &str) -> Vec<Code> {
    let words = text.split('`').skip(1).step_by(2);
    words.filter_map(|word| Code::ALL.iter().copied().find(|code| code.info().name == word)).collect()
}

pub fn lists(operation: &Value, code: Code) -> bool {
    let response = &operation["responses"][code.info().status.as_str()];
    codes_in(response["description"].as_str().unwrap_or_default()).contains(&code)
}

/// Adds a code to the response with its status.
pub fn add(operation: &mut Value, code: Code) {
    if lists(operation, code) {
        return;
    }
    let CodeInfo { name, status, .. } = code.info();
    let response = &mut operation["responses"][status.as_str()];
    response["description"] = match response["description"].as_str() {
        None => format!("`{name}`"),
        Some(text) if text.ends_with('`') => format!("{text}, `{name}`"),
        Some(text) => format!("{}. Also `{name}`", text.trim_end_matches('.')),
    }
    .into();
}

/// Gives each response that is not 2xx the schemas of its codes.
pub fn describe(operation: &mut Value) {
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.starts_with('2') {
            continue;
        }
        let codes = codes_in(response["description"].as_str().unwrap_or_default());
        let schemas: Vec<Value> = codes.iter().map(|code| json!({ "$ref": reference(*code) })).collect();
        let schema = match schemas.as_slice() {
            [only] => only.clone(),
            _ => {
                let mapping = codes.iter().map(|code| (code.info().name.to_owned(), reference(*code).into()));
                let mapping: serde_json::Map<String, Value> = mapping.collect();
                json!({ "oneOf": schemas, "discriminator": { "propertyName": "code", "mapping": mapping } })
            }
        };
        response["content"] = json!({ "application/problem+json": { "schema": schema } });
        if ["423", "429", "503"].contains(&status.as_str()) {
            let schema = json!({ "type": "integer", "format": "int64", "minimum": 1 });
            let description = "When to try again, in seconds.";
            response["headers"] = json!({ "Retry-After": { "description": description, "schema": schema } });
        }
    }
}

/// Adds the schemas of the codes that some operation names.
pub fn add_schemas(api: &mut Value) {
    let text = api["paths"].to_string();
    let schemas = &mut api["components"]["schemas"];
    let all: Vec<&str> = Code::ALL.iter().map(|code| code.info().name).collect();
    schemas["Problem"]["properties"]["code"]["enum"] = json!(all);
    for code in Code::ALL.iter().copied().filter(|code| text.contains(&reference(*code))) {
        schemas[schema_name(code)] = schema(code);
    }
}

/// `LockHeldProblem` for `lock-held`.
pub fn schema_name(code: Code) -> String {
    let words = code.info().name.split('-').map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect::<String>() + "Problem"
}

fn reference(code: Code) -> String {
    format!("#/components/schemas/{}", schema_name(code))
}

fn schema(code: Code) -> Value {
    let CodeInfo { name, status, title, .. } = code.info();
    let mut schema = json!(ProblemBody::schema());
    let own = own(code);
    schema["description"] = format!("{title}.").into();
    let properties = &mut schema["properties"];
    properties["code"] = json!({ "type": "string", "enum": [name], "description": "Stable: clients may rely on it." });
    properties["status"]["example"] = status.as_u16().into();
    properties["title"]["example"] = title.into();
    properties["type"]["example"] = format!("/errors/{name}").into();
    for (name, property) in own["properties"].as_object().into_iter().flatten() {
        properties[name] = property.clone();
    }
    let required = own["required"].as_array().cloned().unwrap_or_default();
    schema["required"].as_array_mut().into_iter().for_each(|of_all| of_all.extend(required.clone()));
    schema
}

/// The fields that only problems with this code have, as the schema of an object.
fn own(code: Code) -> Value {
    match code {
        Code::InvalidRequest | Code::InvalidKey | Code::InvalidTicket => json!(FieldProblem::schema()),
        Code::ForeignHost => json!(HostProblem::schema()),
        Code::ForeignOrigin => json!(OriginProblem::schema()),
        Code::Forbidden => json!(PermissionProblem::schema()),
        Code::LockHeld | Code::LockReserved => with(&json!(RefusalProblem::schema()), &lock_info()),
        Code::LockDelayed => {
            with(&with(&json!(RefusalProblem::schema()), &json!(DelayProblem::schema())), &lock_info())
        }
        Code::WaitTimeout => with(&json!(RefusalProblem::schema()), &json!(WaitProblem::schema())),
        Code::LeaseIdReused | Code::UpgradeBlocked => json!(KeyProblem::schema()),
        Code::LimitMismatch => json!(LimitProblem::schema()),
        Code::KeyFull => with(&json!(SizeProblem::schema()), &results()),
        Code::LeaseLost => with(&json!(LeaseProblem::schema()), &results()),
        Code::StaleToken => json!(TokenProblem::schema()),
        Code::OperationInProgress => json!(ProgressProblem::schema()),
        Code::OperationDuplicate => json!(DuplicateProblem::schema()),
        Code::OperationUnknown => json!(UnknownProblem::schema()),
        Code::ContentsMismatch => with(&json!(IdProblem::schema()), &json!(FieldProblem::schema())),
        Code::OutcomeConflict | Code::OperationEnded => json!(RecordedProblem::schema()),
        Code::OperationSuperseded => json!(SupersededProblem::schema()),
        Code::IdCollision | Code::StampMismatch | Code::OperationNotFound | Code::OperationNotClaimed => {
            json!(IdProblem::schema())
        }
        Code::BatchRefused => items(true),
        Code::UnknownEngine => json!(EngineProblem::schema()),
        Code::StateUnreadable => with(&with(&json!(UnreadableProblem::schema()), &items(false)), &results()),
        Code::Overloaded | Code::StoreUnavailable | Code::OutcomeUnknown | Code::ShuttingDown => {
            with(&with(&json!(TransientProblem::schema()), &items(false)), &results())
        }
        _ if code.info().status == StatusCode::TOO_MANY_REQUESTS => json!(QuotaProblem::schema()),
        _ => Value::Null,
    }
}

/// In answers to Terraform: the holder, as Terraform describes it.
fn lock_info() -> Value {
    let mut schema = json!(LockInfo::schema());
    schema["required"] = json!([]);
    schema
}

fn with(one: &Value, other: &Value) -> Value {
    let mut both = one.clone();
    for (name, property) in other["properties"].as_object().into_iter().flatten() {
        both["properties"][name] = property.clone();
    }
    let required = [one, other].map(|schema| schema["required"].as_array().cloned().unwrap_or_default()).concat();
    both["required"] = required.into();
    both
}

/// The items of a batch: those that may proceed, and problems.
fn items(always: bool) -> Value {
    let item = json!({ "oneOf": [
        { "$ref": "#/components/schemas/BatchItem" },
        { "$ref": "#/components/schemas/Problem" },
    ] });
    let description = "The answers to the operations of a batch, in the order of the request.";
    let items = json!({ "type": "array", "items": item, "description": description });
    json!({ "properties": { "items": items }, "required": if always { vec!["items"] } else { vec![] } })
}

/// What became of each lease in a call about several.
fn results() -> Value {
    let description = "In a call about many leases: each has a `status`, and a `code` unless that is 200.";
    let results = json!({ "type": "array", "items": { "type": "object", "additionalProperties": true }, "description": description });
    json!({ "properties": { "results": results } })
}

/// Schemas alone: the problems are built where they happen.
macro_rules! fields {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)+ })+) => {$(
        $(#[$about])*
        #[derive(ToSchema)]
        #[allow(dead_code, reason = "described, not built: see Problem")]
        struct $name {
            $($(#[$of_field])* $field: $type,)+
        }
    )+};
}

fields! {
    struct FieldProblem {
        /// The field that is wrong, the parameter, `body` or `path`.
        field: Option<String>,
        /// Which entry of the list is wrong, from 0.
        index: Option<u32>,
    }

    struct HostProblem {
        host: String,
    }

    struct OriginProblem {
        #[schema(required)]
        origin: Option<String>,
    }

    struct PermissionProblem {
        /// The scope that is needed.
        scope: Option<String>,
        /// The API key is limited to keys with these prefixes.
        prefixes: Option<Vec<String>>,
        /// Which entry of the list is not permitted, from 0.
        index: Option<u32>,
    }

    struct RefusalProblem {
        /// The first 16.
        holders: Vec<Holder>,
        holders_count: u64,
        /// How many requests wait for the lock.
        waiters: u64,
        /// Where the request would stand in the queue, or stood, from 1.
        position: u64,
        /// In the answer to a multilock: the key that refuses.
        key: Option<String>,
        retry_after_ms: u64,
    }

    struct DelayProblem {
        delayed_until: String,
        delay_left_ms: u64,
    }

    struct WaitProblem {
        waited_ms: u64,
        /// Continues the wait: send it with the same request within a minute. Absent if the request was in no queue.
        ticket: Option<String>,
        /// The longest wait of this node, if the request asked for as much or more.
        wait_ms_max: Option<u64>,
    }

    struct KeyProblem {
        /// In the answer to a multilock: the key.
        key: Option<String>,
    }

    struct LimitProblem {
        /// The limit in force; null if none is set.
        #[schema(required)]
        limit: Option<u32>,
        /// In the answer to a multilock: the key.
        key: Option<String>,
    }

    struct SizeProblem {
        /// How long the state of the key would be; in the answer to a call about many leases, see `results`.
        bytes: Option<u64>,
        bytes_max: Option<u64>,
        /// In the answer to a multilock: the key.
        key: Option<String>,
    }

    struct LeaseProblem {
        /// Why the lease has ended; absent in the answer to a multilock's renew or release.
        why: Option<LostWhy>,
        /// When it has ended; null if that is not known.
        #[schema(schema_with = date_or_null)]
        at: Option<String>,
        /// In the answer to a multilock's acquire: the key.
        key: Option<String>,
        /// In the answer to a multilock's renew or release: its leases that have ended.
        lost: Option<Vec<LostKey<'static>>>,
    }

    struct TokenProblem {
        /// The highest token of the key; 0 if it has no record.
        current: u64,
    }

    struct IdProblem {
        /// The id of the operation.
        id: Option<String>,
    }

    struct ProgressProblem {
        id: String,
        attempt: u32,
        started_at: Option<String>,
        lease_until: String,
        /// What is left of the lease, in ms.
        remaining_ms: u64,
        waited_ms: Option<u64>,
        /// The longest wait of this node, if the request asked for as much or more.
        wait_ms_max: Option<u64>,
        retry_after_ms: u64,
    }

    struct DuplicateProblem {
        id: String,
        attempt: u32,
        /// When the operation succeeded.
        at: String,
        /// As posted; null if there is none.
        #[schema(value_type = Value, required)]
        result: Value,
        result_omitted: Option<bool>,
        expires_at: Option<String>,
        /// What is left of the retention, in ms.
        retention_ms: Option<u64>,
        permanent: Option<bool>,
    }

    struct UnknownProblem {
        id: String,
        attempt: Option<u32>,
        why: UnknownWhy,
        at: Option<String>,
        /// What is left of the hold-off, in ms.
        hold_off_ms: Option<u64>,
    }

    struct RecordedProblem {
        id: String,
        recorded: OutcomeName,
    }

    struct SupersededProblem {
        id: String,
        /// The attempt that has taken over.
        attempt: u32,
        suspected_double_runs: u32,
    }

    struct EngineProblem {
        field: Option<String>,
    }

    struct QuotaProblem {
        /// Which quota of the app.
        quota: String,
        limit: u64,
        remaining: u64,
        retry_after_ms: u64,
    }

    struct UnreadableProblem {
        key: Option<String>,
        id: Option<String>,
    }

    struct TransientProblem {
        retry_after_ms: Option<u64>,
        /// After a wait: it continues the wait.
        ticket: Option<String>,
        /// Repeat the acquire with it.
        lease_id: Option<String>,
        /// Repeat the pre with it.
        attempt_id: Option<String>,
        /// In a batch: the id of the operation.
        id: Option<String>,
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described, not built: see `refusals`")]
pub enum UnknownWhy {
    /// The attempt let its lease pass without a post.
    LeasePassed,
    /// The attempt posted `unknown`.
    Reported,
    /// The store may have lost the record.
    RecordMayBeLost,
}

fn date_or_null() -> Schema {
    let date =
        ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    OneOfBuilder::new().item(date).item(ObjectBuilder::new().schema_type(Type::Null)).build().into()
}
