//! What an acquire has granted, and what is known of it since.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Moment;
use crate::error::{Error, Loss, LossReason};
use crate::transport::{encode, is_about};

/// The keys of a lease, and where calls about them go.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    One(String),
    Many(Vec<String>),
}

impl Target {
    pub(crate) fn keys(&self) -> &[String] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }

    pub(crate) fn path(&self, verb: &str) -> String {
        match self {
            Self::One(key) => format!("/v1/locks/{}/{verb}", encode(key)),
            Self::Many(_) if verb == "acquire" => "/v1/multilocks/acquire".to_owned(),
            Self::Many(_) => format!("/v1/leases/{verb}"),
        }
    }

    /// The body of a renewal or a release.
    pub(crate) fn body(&self, lease_id: &str) -> Value {
        match self {
            Self::One(_) => json!({ "lease_id": lease_id }),
            Self::Many(keys) => {
                let leases: Value = keys.iter().map(|key| json!({ "key": key, "lease_id": lease_id })).collect();
                json!({ "leases": leases })
            }
        }
    }
}

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// It certainly lasts until this moment.
    Held {
        until: Moment,
        /// An operator asks to release the lock: the lease ends at the deadline.
        revocation: Option<Revocation>,
    },
    /// Another client may hold the lock: stop the work.
    Lost(Loss),
    Released,
}

/// An operator asks the holder to release the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    pub reason: Option<String>,
    pub by: Option<String>,
    /// When the lease ends, by the store's clock.
    pub deadline: String,
    /// The lease is not renewed beyond what is known of it.
    pub(crate) is_end: bool,
}

impl Revocation {
    /// Of several keys, that with the earliest deadline.
    fn of(answer: &Value, left_ms: u64) -> Option<Self> {
        let ms = |revocation: &Value| revocation["deadline_ms"].as_u64().unwrap_or(u64::MAX);
        let asked = leases(answer).map(|lease| &lease["revocation"]).filter(|revocation| revocation.is_object());
        let first = asked.min_by_key(|revocation| ms(revocation))?;
        let text = |name: &str| first[name].as_str().map(str::to_owned);
        let (deadline, is_end) = (text("deadline").unwrap_or_default(), ms(first) <= left_ms);
        Some(Self { reason: text("reason"), by: text("by"), deadline, is_end })
    }
}

/// Only this client's clock says that the lease has ended. The last renewal may have shown that it would end by a revocation.
pub(crate) fn loss_by_the_clock(revocation: Option<&Revocation>) -> Loss {
    match revocation.filter(|revocation| revocation.is_end) {
        Some(revocation) => Loss { reason: LossReason::Revoked, at: Some(revocation.deadline.clone()) },
        None => Loss::not_renewed(),
    }
}

/// The leases of an answer to a grant or a renewal: that of one lock, or one for each of several.
fn leases(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["results"].as_array().map_or(std::slice::from_ref(answer), Vec::as_slice).iter()
}

/// The numbers of the permits that one lock was granted.
fn slots_of(granted: &Value) -> Vec<u32> {
    let numbers = granted["slots"].as_array().into_iter().flatten();
    numbers.filter_map(|number| number.as_u64()?.try_into().ok()).collect()
}

/// What an acquire has granted.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) target: Target,
    pub(crate) lease_id: String,
    /// When the request was sent whose answer says how long the lease lasts.
    pub(crate) sent: Moment,
    pub(crate) until: Moment,
    pub(crate) revocation: Option<Revocation>,
    pub(crate) owner: String,
    /// One for each key.
    pub(crate) tokens: Vec<u64>,
    /// The numbers of the permits of each key.
    pub(crate) slots: Vec<Vec<u32>>,
    pub(crate) ttl: Duration,
}

impl Grant {
    pub(crate) fn of(
        target: &Target,
        lease_id: &str,
        sent: Moment,
        ttl: Duration,
        answer: &Value,
    ) -> Result<Self, Error> {
        let granted = answer["locks"].as_array().map_or(std::slice::from_ref(answer), Vec::as_slice);
        let keys = target.keys();
        if granted.len() != keys.len() {
            return Err(Error::Invalid("the grant has not one lease for each key".to_owned()));
        }
        keys.iter().zip(granted).try_for_each(|(key, granted)| is_about(key, granted))?;
        let tokens: Option<Vec<u64>> = granted.iter().map(|granted| granted["token"].as_u64()).collect();
        let tokens = tokens.ok_or_else(|| Error::Invalid("the grant has no token".to_owned()))?;
        let owner = answer["owner"].as_str().unwrap_or_default().to_owned();
        let target = target.clone();
        let slots = granted.iter().map(slots_of).collect();
        let (lease_id, until, revocation) = (lease_id.to_owned(), sent, None);
        let mut grant = Self { target, lease_id, sent, until, revocation, owner, tokens, slots, ttl };
        grant.extend(sent, answer);
        Ok(grant)
    }

    pub(crate) fn keys(&self) -> &[String] {
        self.target.keys()
    }

    /// The answer to a request that was sent then says how long the lease lasts.
    pub(crate) fn extend(&mut self, sent: Moment, answer: &Value) {
        self.sent = sent;
        let left_ms = leases(answer).map(|lease| lease["ttl_ms"].as_u64().unwrap_or(0)).min().unwrap_or(0);
        self.until = sent.plus(Duration::from_millis(left_ms));
        self.revocation = Revocation::of(answer, left_ms);
    }
}
