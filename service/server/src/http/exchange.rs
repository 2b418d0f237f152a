//! A request and what is found out while it is served. Layers and handlers share it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use axum::http::{Extensions, Uri};
use latchgate_core::App;

use super::client::Client;
use super::endpoint::Endpoint;
use super::endpoints::Found;
use super::problem::Problem;
use super::target;
use crate::access::Caller;
use crate::audit::Entry;

pub struct Exchange {
    /// The address of the client.
    pub from: IpAddr,
    /// An API key is in the URL: the request is refused, and the URL is not logged.
    pub has_key_in_url: bool,
    pub client: Arc<Client>,
    pub found: Found,
    /// Set when the request has been permitted.
    pub caller: OnceLock<Arc<Caller>>,
    /// The app that the request names; `None` if it names all. A handler gets the request only if the caller may act in it.
    pub app: OnceLock<Option<App>>,
    /// The audit record, if the request leaves one.
    pub record: OnceLock<Entry>,
    /// As how many requests it has been counted, against the rate of its app.
    counted: AtomicU32,
    /// The request may wait for other clients, so its time says nothing about the node.
    pub waits: AtomicBool,
}

impl Exchange {
    pub fn new(from: IpAddr, uri: &Uri, client: Arc<Client>, found: Found) -> Arc<Self> {
        let has_key_in_url = target::has_api_key(uri);
        let (caller, app, record, counted, waits) = Default::default();
        Arc::new(Self { from, has_key_in_url, client, found, caller, app, record, counted, waits })
    }

    /// # Errors
    /// Never for a request that came over a connection.
    pub fn of(extensions: &Extensions) -> Result<&Arc<Self>, Problem> {
        extensions.get::<Arc<Self>>().ok_or_else(Problem::defect)
    }

    pub fn endpoint(&self) -> &'static Endpoint {
        self.found.endpoint
    }

    /// The parameter of the request's path; empty if its endpoint has none.
    pub fn parameter<'a>(&self, uri: &'a Uri) -> Cow<'a, str> {
        self.endpoint().parameter(uri.path())
    }

    /// Counts the request as so many more. Returns as how many it was counted before.
    pub fn count(&self, more: u32) -> u32 {
        self.counted.fetch_add(more, Ordering::Relaxed)
    }
}
