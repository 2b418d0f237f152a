//! A client of one Latchgate.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Url};
use serde_json::{Value, json};

use crate::background::Background;
use crate::clock::Moment;
use crate::error::Error;
use crate::renewals::Renewals;
use crate::transport::{ANSWER_MAX, ANSWER_MIN, Failure, Transport, TransportSettings, encode, is_about, ms};

const PATIENCE: Duration = Duration::from_secs(2);

/// What a revocation says. All of it may be left out.
#[derive(Clone, Debug, Default)]
pub struct Revoke {
    pub reason: Option<String>,
    pub by: Option<String>,
    /// How long the holders may keep their leases; 10 s if absent.
    pub grace: Option<Duration>,
    /// Only the leases with this token.
    pub token: Option<u64>,
}

/// A lock that is being revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoking {
    /// How many leases are revoked.
    pub leases: u64,
    /// When the last of them ends, by the store's clock; `None` if the lock was free.
    pub deadline: Option<String>,
}

/// A client of one Latchgate. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    settings: Arc<TransportSettings>,
    pub(crate) patience: Duration,
    pub(crate) answer_max: Duration,
    app: Option<String>,
    pub(crate) background: Background,
    pub(crate) renewals: Arc<Renewals>,
}

impl Client {
    /// A client of the nodes at these base URLs, `http://` or `https://`. It calls one of them until that one fails, then the next.
    /// A text may have several, separated by commas, as `LATCHGATE_URL` does.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no URL, or one has the wrong form. A URL has no user and password: see [`Self::api_key`].
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let texts: Vec<U> = urls.into_iter().collect();
        if texts.iter().any(|text| text.as_ref().contains('@')) {
            return Err(Error::Invalid("a URL has a login, which no node takes: give an API key".to_owned()));
        }
        let texts =
            texts.iter().flat_map(|texts| texts.as_ref().split(',')).map(str::trim).filter(|text| !text.is_empty());
        let urls: Vec<Url> = texts.map(parse).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            return Err(Error::Invalid("a client needs at least one base URL".to_owned()));
        }
        let settings = Arc::new(TransportSettings::of(urls));
        let transport = Arc::new(Transport::new(&settings)?);
        let (background, renewals) = (Background::new(), Arc::default());
        let (patience, answer_max, app) = (PATIENCE, ANSWER_MAX, None);
        Ok(Self { transport, settings, patience, answer_max, app, background, renewals })
    }

    /// Sends this API key with each request.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has not the form of one. White space around it, such as the line end of a file, is ignored.
    pub fn api_key(mut self, key: &str) -> Result<Self, Error> {
        Arc::make_mut(&mut self.settings).set_api_key(key)?;
        self.transport = Arc::new(Transport::new(&self.settings)?);
        self.renewals = Arc::default();
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
        self.renewals = Arc::default();
        Ok(self)
    }

    /// When no node answers, a call ends after this time in all; 2 s unless set. A wait that has begun goes on for as long as it lasts, and
    /// for this time beyond; renewals go on until the lease ends, and the report of an outcome for as long as the attempt lasts.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long a node may take to answer a call about an operation, beyond what the call asks it to wait; 5 s unless set. Then the call is
    /// repeated at the next node. It is less if the call must end before.
    #[must_use]
    pub fn answer_max(mut self, answer_max: Duration) -> Self {
        self.answer_max = answer_max;
        self
    }

    /// What [`call`](Self::call), [`watch`](Self::watch) and [`watch_prefix`](Self::watch_prefix) are about: another app than that of the API
    /// key, which must be an operator's. Leases and operations are those of its own app all the same.
    #[must_use]
    pub fn in_app(mut self, app: Option<&str>) -> Self {
        self.app = app.map(str::to_owned);
        self
    }

    /// The path, with the app that an operator names.
    pub(crate) fn of_app(&self, path: &str) -> String {
        match &self.app {
            Some(app) => format!("{path}{}app={}", if path.contains('?') { '&' } else { '?' }, encode(app)),
            None => path.to_owned(),
        }
    }

    /// When a call that may wait ends while no node answers. A wait goes on through an outage, but does not begin in one: the base URL may
    /// be wrong.
    pub(crate) fn ends(&self, wait_until: Moment, silent_since: Option<Moment>, was_answered: bool) -> Moment {
        let from = if was_answered { wait_until } else { silent_since.unwrap_or_else(Moment::now) };
        from.plus(self.patience)
    }

    /// [`ends`](Self::ends) after a failure of the call that was `sent`. A wait also goes on while its app has used up a quota.
    pub(crate) fn failed(
        &self,
        failure: &Failure,
        sent: Moment,
        wait_until: Moment,
        silent_since: &mut Option<Moment>,
        was_answered: bool,
    ) -> Moment {
        if failure.is_of_quota() && !wait_until.has_passed() {
            *silent_since = None;
            return wait_until.plus(self.patience);
        }
        silent_since.get_or_insert(sent);
        self.ends(wait_until, *silent_since, was_answered)
    }

    /// For a resource that cannot store tokens: fails if a higher token has been granted or presented for the key.
    ///
    /// # Errors
    /// [`Error::StaleToken`]; [`Error::Unreachable`] if no node has answered.
    pub async fn fence(&self, key: &str, token: u64) -> Result<(), Error> {
        let (path, body) = (format!("/v1/locks/{}/fence", encode(key)), json!({ "token": token }));
        let until = Moment::now().plus(self.patience);
        match self.transport.repeat(&Method::POST, &path, Some(&body), self.answer_max, until).await {
            Ok(answer) => is_about(key, &answer),
            Err(Error::Refused(problem)) if problem.code() == "stale-token" => Err(Error::StaleToken(problem)),
            Err(error) => Err(error),
        }
    }

    /// Asks the holders of a lock to release it. Their leases end after the grace.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no node has answered. Without a `token`, a call whose answer is lost is not repeated, because it could ask
    /// the next holder.
    pub async fn revoke(&self, key: &str, revoke: &Revoke) -> Result<Revoking, Error> {
        let path = format!("/v1/locks/{}/revoke", encode(key));
        let fields = [
            ("reason", revoke.reason.as_deref().map(Value::from)),
            ("by", revoke.by.as_deref().map(Value::from)),
            ("grace_ms", revoke.grace.map(|grace| ms(grace).into())),
            ("token", revoke.token.map(Value::from)),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let body = Value::Object(fields.collect());
        let answer = if revoke.token.is_some() {
            let until = Moment::now().plus(self.patience);
            self.transport.repeat(&Method::POST, &path, Some(&body), self.answer_max, until).await?
        } else {
            self.call_once(&Method::POST, &path, Some(&body), self.answer_max).await?
        };
        is_about(key, &answer)?;
        let deadline = answer["deadline"].as_str().map(str::to_owned);
        Ok(Revoking { leases: answer["leases"].as_u64().unwrap_or(0), deadline })
    }

    /// Returns when no call of this client or its clones goes on in the background: the release of a dropped lease, the report of
    /// a dropped attempt, and the return of a lock or an operation whose grant was lost. Await it before the process ends. `false` if no
    /// node has answered such a return in time: a lock may stay taken until its lease ends, and an operation may stay claimed.
    pub async fn settled(&self) -> bool {
        self.background.ended().await
    }

    /// Whether the next call goes to the node at this base URL.
    #[must_use]
    pub fn prefers(&self, url: &str) -> bool {
        self.transport.prefers(url)
    }

    /// Any endpoint. A GET is repeated while no node answers; another call is sent to one node at a time, and to the next one only if it
    /// was certainly not carried out. It ends after the client's patience: an order that takes a node longer needs more.
    ///
    /// # Errors
    /// Each answer but 2xx is an error.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let path = &self.of_app(path);
        if method == Method::GET {
            return self.transport.repeat(&method, path, body, ANSWER_MAX, Moment::now().plus(self.patience)).await;
        }
        self.call_once(&method, path, body, self.patience).await
    }

    /// Calls the next node only if a node has certainly not carried out the call.
    async fn call_once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        answer_max: Duration,
    ) -> Result<Value, Error> {
        let (mut nodes, mut index) = (self.transport.nodes(), self.transport.preferred());
        let until = Moment::now().plus(self.patience);
        loop {
            nodes -= 1;
            let answer_max = answer_max.min(until.left()).max(ANSWER_MIN);
            match self.transport.call(&mut index, method, path, body, answer_max).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Decided(problem)) => return Err(Error::Refused(problem)),
                Err(failure) if nodes == 0 || failure.may_have_run() => return Err(failure.into_error()),
                Err(_) => {}
            }
        }
    }
}

fn parse(text: &str) -> Result<Url, Error> {
    // It is not shown: it may have a login or an API key.
    let invalid =
        || Error::Invalid("one of the URLs is not that of a node (example: http://127.0.0.1:7070)".to_owned());
    let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
    let is_base = ["http", "https"].contains(&&*scheme.to_ascii_lowercase()) && !rest.starts_with('/');
    // The parser leaves them out, encodes or completes them.
    let is_other = |letter: char| letter.is_control() || letter.is_whitespace() || ['?', '#', '\\'].contains(&letter);
    if !is_base || text.contains(is_other) || text.escape_debug().to_string().contains("\\u{") {
        return Err(invalid());
    }
    Url::parse(text).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_not_show_its_api_key() {
        let client = Client::new(["http://a"]).unwrap().api_key("lgk_0123456789ab_c0ffee").unwrap();
        assert!(!format!("{client:?}").contains("c0ffee"));
    }
}
