//! `/v1/terraform/{key}`: the lock of Terraform's `http` backend. Its state lives elsewhere.
//!
//! Terraform does not renew a lock, and shows its id to users that are refused, so that they can unlock it by force.

use latchgate_core::lock::{Lease, LeaseId, Metadata};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::Json;
use super::call::{Answered, Call};
use super::locks::acquire::granted_answer;
use super::locks::answers::{ended, refusal};
use super::locks::fields::{parse_metadata, parse_note, parse_owner};
use super::locks::interventions::end_all;
use super::locks::leases::ReleaseAnswer;
use super::path::{self, PathText};
use super::problem::Problem;
use super::query::Query;
use super::{answer, audit, quotas};
use crate::audit::Action;
use crate::format::rfc3339;
use crate::locks::{Acquired, LockRequest, Refused};

/// Where the locks are among all keys.
const PREFIX: &str = "terraform/";
/// Longest lock info that is kept whole, in bytes.
const INFO_MAX_BYTES: usize = 1_000;

/// Terraform's description of a lock.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LockInfo {
    /// A UUID, which is the `lease_id`.
    #[serde(rename = "ID")]
    id: String,
    operation: String,
    info: String,
    /// The owner of the lock.
    who: String,
    version: String,
    created: String,
    path: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct LockQuery {
    /// Length of the lease, in ms. Terraform does not renew it. The longest lease of the node if absent.
    #[param(minimum = 1, maximum = 31_536_000_000_u64)]
    ttl_ms: Option<u64>,
}

/// Lock a Terraform state (also with the method LOCK).
///
/// The lock `terraform/{key}` with the `lease_id` and the owner of the lock info. 423 has the lock info of the holder.
#[utoipa::path(
    post, path = "/v1/terraform/{key}", tag = "terraform", operation_id = "lockTerraformState",
    params(("key" = String, Path, min_length = 1, max_length = 512, description = "The name of the state, percent-encoded", example = "network"), LockQuery),
    request_body(content = LockInfo, example = json!({"ID": "3b9d1c20-7f7e-4f0e-8a5e-0f9d8a1c2b3d", "Operation": "OperationTypeApply", "Who": "ann@laptop"})),
    responses((status = 200, description = "The lock is yours.", body = super::locks::acquire::AcquireAnswer))
)]
pub async fn lock(
    call: Call,
    PathText(state): PathText,
    Query(LockQuery { ttl_ms }): Query<LockQuery>,
    Json(info): Json<LockInfo>,
) -> Answered {
    let address = path::address(&call, &format!("{PREFIX}{state}"))?;
    let ttl_ms = ttl_ms.map_or(Ok(call.context.limits.ttl_ms_max), |ttl_ms| call.context.check_ttl(ttl_ms))?;
    let lease_id = info.lease_id()?;
    let mut request = LockRequest::new(lease_id, ttl_ms);
    request.lease.owner = parse_owner(Some(&*info.who).filter(|who| !who.is_empty()))?;
    request.lease.metadata = Some(info.metadata()?);
    match quotas::acquire(&call, &address, request).await? {
        Acquired::Granted(granted) => Ok(answer::ok(&granted_answer(&call.context, &address, &granted))),
        Acquired::Refused(refused) => Err(LockInfo::of_holder(&refused).show(refusal(&refused))),
        other => Err(ended(&other)),
    }
}

/// Unlock a Terraform state (also with the method UNLOCK).
///
/// Without a body, as `terraform force-unlock` sends it, whichever lock there is: this needs the scope `admin`.
#[utoipa::path(
    delete, path = "/v1/terraform/{key}", tag = "terraform", operation_id = "unlockTerraformState",
    params(("key" = String, Path, min_length = 1, max_length = 512, description = "The name of the state, percent-encoded", example = "network")),
    request_body(content = ref("#/components/schemas/LockInfo"), content_type = "application/json", example = json!({"ID": "3b9d1c20-7f7e-4f0e-8a5e-0f9d8a1c2b3d", "Operation": "OperationTypeApply", "Who": "ann@laptop"})),
    responses((status = 200, description = "Unlocked.", body = ReleaseAnswer))
)]
pub async fn unlock(
    call: Call,
    PathText(state): PathText,
    Query(LockQuery { .. }): Query<LockQuery>,
    info: Option<Json<LockInfo>>,
) -> Answered {
    let address = path::address(&call, &format!("{PREFIX}{state}"))?;
    let Some(Json(info)) = info else {
        audit::begin_action(&call, Action::Force, address.key.as_str());
        call.check_admin()?;
        end_all(&call, &address, parse_note(Some("force-unlock"), None)?).await?;
        return Ok(answer::ok(&ReleaseAnswer { still_held: 0, already: false }));
    };
    let (still_held, already) = quotas::release(&call, &address, &info.lease_id()?).await?;
    Ok(answer::ok(&ReleaseAnswer { still_held, already }))
}

impl LockInfo {
    fn lease_id(&self) -> Result<LeaseId, Problem> {
        LeaseId::parse(&self.id).map_err(|error| Problem::field("ID", error))
    }

    /// Other callers see it. The fields that nothing needs are left out if it is too long.
    fn metadata(&self) -> Result<Metadata, Problem> {
        let mut kept = self.clone();
        if serde_json::to_vec(&kept).unwrap_or_default().len() > INFO_MAX_BYTES {
            (kept.info, kept.path) = (String::new(), String::new());
        }
        match serde_json::to_value(&kept) {
            Ok(serde_json::Value::Object(fields)) => parse_metadata("metadata", fields),
            _ => Err(Problem::defect()),
        }
    }

    /// Terraform cannot read an answer in which `Created` is no time.
    fn of_holder(refused: &Refused) -> Self {
        let Some(lease) = refused.holders.first() else {
            return Self { created: rfc3339(refused.now), ..Self::default() };
        };
        Self::of_lease(lease).unwrap_or_else(|| Self {
            who: lease.owner.as_str().to_owned(),
            created: rfc3339(lease.granted_at),
            ..Self::default()
        })
    }

    /// `None` if the holder is not Terraform.
    fn of_lease(lease: &Lease) -> Option<Self> {
        let info: Self = serde_json::from_str(lease.metadata.as_ref()?.as_json_text()).ok()?;
        (info.id == lease.lease_id.as_str()).then_some(info)
    }

    fn show(self, problem: Problem) -> Problem {
        problem
            .with("ID", self.id)
            .with("Operation", self.operation)
            .with("Info", self.info)
            .with("Who", self.who)
            .with("Version", self.version)
            .with("Created", self.created)
            .with("Path", self.path)
    }
}
