//! A client of one Latchgate.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, Url};
use serde_json::Value;

use crate::background::Background;
use crate::clock::Moment;
use crate::error::Error;
use crate::events::Events;
use crate::lock::{LockRequest, Wanted};
use crate::operation::Operation;
use crate::transport::{ANSWER_MAX, Failure, Transport, TransportSettings};

const PATIENCE: Duration = Duration::from_secs(10);

/// A client of one Latchgate. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    settings: Arc<TransportSettings>,
    pub(crate) patience: Duration,
    pub(crate) answer_max: Duration,
    pub(crate) background: Background,
}

impl Client {
    /// A client of the nodes at these base URLs, `http://` or `https://`. It calls one of them until that one fails, then the next.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no URL, or one has the wrong form.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let urls: Vec<Url> = urls.into_iter().map(|url| parse(url.as_ref())).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            return Err(Error::Invalid("a client needs at least one base URL".to_owned()));
        }
        let settings = Arc::new(TransportSettings::of(urls));
        let transport = Arc::new(Transport::new(&settings)?);
        Ok(Self { transport, settings, patience: PATIENCE, answer_max: ANSWER_MAX, background: Background::new() })
    }

    /// Sends this API key with each request.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot be sent in a header.
    pub fn api_key(mut self, key: &str) -> Result<Self, Error> {
        Arc::make_mut(&mut self.settings).set_api_key(key)?;
        self.transport = Arc::new(Transport::new(&self.settings)?);
        Ok(self)
    }

    /// Trusts nodes at `https://` whose certificates these authorities have signed, and no others. `pem` has their certificates.
    /// Without this, those that the system trusts are.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has no certificate, or one that cannot be read.
    pub fn authorities(mut self, pem: &[u8]) -> Result<Self, Error> {
        Arc::make_mut(&mut self.settings).set_authorities(pem)?;
        self.transport = Arc::new(Transport::new(&self.settings)?);
        Ok(self)
    }

    /// How long a call is repeated while no node answers; 10 s unless set. A wait for a lock is repeated for as long as it lasts.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long a node may take to answer a call about an operation, beyond what the call asks it to wait; 10 s unless set. Then the call is
    /// repeated at the next node.
    #[must_use]
    pub fn answer_max(mut self, answer_max: Duration) -> Self {
        self.answer_max = answer_max;
        self
    }

    /// A lock that is to be acquired.
    pub fn lock(&self, key: impl Into<String>) -> LockRequest {
        let key = key.into();
        // URLs lose these in a path.
        let is_multilock = [".", ".."].contains(&key.as_str());
        LockRequest::new(self.clone(), vec![Wanted::exclusive(key)], is_multilock)
    }

    /// Several locks that are to be acquired together, all or none.
    pub fn multilock(&self, wanted: impl IntoIterator<Item = Wanted>) -> LockRequest {
        LockRequest::new(self.clone(), wanted.into_iter().collect(), true)
    }

    /// Operations of this name, each of which is done once.
    #[must_use]
    pub fn operation(&self, name: impl Into<String>) -> Operation {
        Operation::new(self.clone(), name.into())
    }

    /// The events of one lock from now on.
    #[must_use]
    pub fn watch(&self, key: &str) -> Events {
        Events::new(self.clone(), format!("/v1/locks/{}/events", encode(key)))
    }

    /// The events of all locks whose keys begin with `prefix`, from now on.
    #[must_use]
    pub fn watch_prefix(&self, prefix: &str) -> Events {
        Events::new(self.clone(), format!("/v1/events?prefix={}", encode(prefix)))
    }

    /// Returns when no call of this client or its clones goes on in the background: the release of a dropped lease, the report of
    /// a dropped attempt, and the return of a lock or an operation whose grant was lost. Await it before the process ends.
    pub async fn settled(&self) {
        self.background.ended().await;
    }

    /// Whether the next call goes to the node at this base URL.
    #[must_use]
    pub fn prefers(&self, url: &str) -> bool {
        self.transport.prefers(url)
    }

    /// Any endpoint. A GET is repeated while no node answers; another call is sent to one node at a time, and to the next one only if it
    /// was certainly not carried out.
    ///
    /// # Errors
    /// Each answer but 2xx is an error.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        if method == Method::GET {
            return self.transport.repeat(&method, path, body, ANSWER_MAX, Moment::now().plus(self.patience)).await;
        }
        let mut nodes = self.transport.nodes();
        loop {
            nodes -= 1;
            match self.transport.call(&method, path, body, ANSWER_MAX * 6).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Decided(problem)) => return Err(Error::Refused(problem)),
                Err(failure) if nodes == 0 || failure.may_have_run() => return Err(failure.into_error()),
                Err(_) => {}
            }
        }
    }
}

/// A key or a name as a part of a path or a query, for [`Client::call`].
#[must_use]
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn parse(text: &str) -> Result<Url, Error> {
    let invalid = || Error::Invalid(format!("{text:?} is not a base URL such as http://127.0.0.1:7070"));
    let url = Url::parse(text.trim()).map_err(|_| invalid())?;
    if !["http", "https"].contains(&url.scheme()) || url.query().is_some() || !url.has_host() {
        return Err(invalid());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_needs_base_urls() {
        assert!(Client::new([""; 0]).is_err());
        for wrong in ["", "localhost:7070", "ftp://a", "/v1"] {
            assert!(matches!(Client::new([wrong]), Err(Error::Invalid(_))), "{wrong}");
        }
        assert!(Client::new(["http://a:7070", "https://b/latchgate/"]).is_ok());
    }
}
