//! A permitted request, for its handler.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::Response;
use latchgate_core::access::Scope;
use latchgate_core::{Address, App, Key};
use tokio::sync::OwnedSemaphorePermit;

use super::access::{self, lacks};
use super::audit;
use super::context::SharedContext;
use super::endpoint::{Exchange, RequestContext};
use super::problem::{Code, Problem};
use crate::access::Caller;
use crate::access::operator::Order;
use crate::access::quota::{Counted, Excess};
use crate::failure::Failure;

/// A listing of so many entries counts as one request.
pub const ENTRIES_PER_REQUEST: usize = 100;

/// What a handler answers.
pub type Answered = Result<Response, Problem>;

/// Counts a request that waits until this is dropped: at the node, and for its app.
pub type Waiting = (OwnedSemaphorePermit, Option<Counted>);

/// A request whose caller is known. An endpoint that needs nothing has none.
pub struct Call {
    pub context: SharedContext,
    pub caller: Arc<Caller>,
    pub exchange: Arc<Exchange>,
}

impl FromRequestParts<RequestContext> for Call {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, served: &RequestContext) -> Result<Self, Problem> {
        let RequestContext { context, exchange } = served.clone();
        let caller = Arc::clone(exchange.caller.get().ok_or_else(Problem::defect)?);
        Ok(Self { context, caller, exchange })
    }
}

impl Call {
    /// The caller's app, or the one that an operator names.
    pub fn app(&self) -> &App {
        self.apps().unwrap_or_else(|| self.caller.app())
    }

    /// The same; `None` if the operator names all apps, which only listings permit.
    pub fn apps(&self) -> Option<&App> {
        self.exchange.app.get().map_or_else(|| Some(self.caller.app()), Option::as_ref)
    }

    /// The app of an item of a listing, if that is of all apps.
    pub fn shown_app(&self, app: &App) -> Option<String> {
        self.apps().is_none().then(|| app.as_str().to_owned())
    }

    /// What the item of a listing is called; if the listing is of all apps, the JSON list of its app and that.
    pub fn shown_name(&self, app: &App, name: &str) -> String {
        self.shown_app(app).map_or_else(|| name.to_owned(), |app| serde_json::json!([app, name]).to_string())
    }

    /// The address of a key that the caller may use.
    ///
    /// # Errors
    /// `forbidden`, with the prefixes that are permitted.
    pub fn address(&self, key: Key) -> Result<Address, Problem> {
        self.check_keys(key.as_str())?;
        Ok(Address { app: self.app().clone(), key })
    }

    /// Checks the prefixes of the caller: of a key, or of all keys that begin with a text.
    ///
    /// # Errors
    /// `forbidden`, with the prefixes that are permitted.
    pub fn check_keys(&self, prefix: &str) -> Result<(), Problem> {
        let permissions = &self.caller.permissions;
        if permissions.permits_keys(prefix) {
            return Ok(());
        }
        let prefixes = permissions.prefixes.join(" or ");
        let detail = format!("This API key is limited to locks whose keys begin with {prefixes}.");
        Err(Problem::new(Code::Forbidden, detail).with("prefixes", &permissions.prefixes))
    }

    /// For a request that ends what is not its caller's own, which only its content shows.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn check_admin(&self) -> Result<(), Problem> {
        if self.caller.permissions.scopes.has(Scope::Admin) { Ok(()) } else { Err(lacks(Scope::Admin, false)) }
    }

    /// Counts the request as so many more, against the rate of its app.
    ///
    /// # Errors
    /// `quota-reached`.
    pub fn count(&self, more: usize) -> Result<(), Problem> {
        access::count(&self.exchange, more)
    }

    /// Counts a listing, which reads up to so many entries.
    ///
    /// # Errors
    /// `quota-reached`.
    pub fn count_listed(&self, entries: usize) -> Result<(), Problem> {
        self.count(entries.saturating_sub(1) / ENTRIES_PER_REQUEST)
    }

    /// Counts the request as one that waits until the permit is dropped, unless `wait` is 0.
    ///
    /// # Errors
    /// `overloaded`, or `quota-reached`.
    pub fn enter_wait(&self, wait: Duration) -> Result<Option<Waiting>, Problem> {
        if wait.is_zero() {
            return Ok(None);
        }
        self.exchange.waits.store(true, Ordering::Relaxed);
        self.enter(self.caller.app_use.wait()).map(Some)
    }

    /// Counts the request as an event stream, which waits for the next event, until the permit is dropped.
    ///
    /// # Errors
    /// `overloaded`, or `quota-reached`.
    pub fn enter_stream(&self) -> Result<Waiting, Problem> {
        self.enter(self.caller.app_use.stream())
    }

    /// Requests that wait take a part of the connections only: holders must be able to renew, however many clients wait.
    fn enter(&self, of_app: Result<Option<Counted>, Excess>) -> Result<Waiting, Problem> {
        let (of_app, of_node) = (of_app?, Arc::clone(&self.context.waits).try_acquire_owned());
        let full =
            Failure::Overloaded("this node has reached its limit of waiting requests, 80 % of --connections-max");
        Ok((of_node.map_err(|_| full)?, of_app))
    }

    /// Says more in the audit record of the request. It must contain no secret.
    pub fn detail(&self, detail: impl FnOnce() -> String) {
        if let Some(record) = self.exchange.record.get() {
            record.detail(detail());
        }
    }

    /// Says in the audit record what only the handler knows: what is acted on.
    pub fn resource(&self, resource: &str) {
        if let Some(record) = self.exchange.record.get() {
            record.resource(audit::in_app(resource, &self.exchange, &self.caller));
        }
    }

    /// An order of the caller, which the audit record is about.
    ///
    /// # Errors
    /// Never at an endpoint whose requests leave a record.
    pub fn order(&self) -> Result<Order<'_>, Problem> {
        let record = self.exchange.record.get().ok_or_else(Problem::defect)?;
        Ok(Order { access: &self.context.access, by: &self.caller, record })
    }
}
