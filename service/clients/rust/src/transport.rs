//! Calls to the nodes: which one, and when to repeat.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rand::RngExt;
use reqwest::{Method, Response, Url, header};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Problem};

/// Longest time for a connection to a node.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest time for an answer, beyond what the call asks the node to wait.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Shortest time for an answer.
pub(crate) const ANSWER_MIN: Duration = Duration::from_millis(20);
/// The last request of a call has this time, too: with less, an answer of an outage would be cut.
const REQUEST_MIN: Duration = Duration::from_millis(100);
/// One request has at most half of what is left of a call's time.
const SHARES_MIN: usize = 2;
/// A body comes with its head, so it has this time also if the head came late.
const BODY_MIN: Duration = Duration::from_millis(100);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
const LATE: &str = "no answer in time";
/// The code of an answer that is not Latchgate's, and does not say that a node is away.
const FOREIGN: &str = "foreign-answer";
/// Longest body of an answer, in bytes: a page of 1 000 locks with their metadata has some 6 MB.
const BODY_BYTES_MAX: usize = 64 * 1_024 * 1_024;
/// Longest `Retry-After` that is obeyed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Transport {
    nodes: Vec<Node>,
    /// The index of the node that a call asks first. Another one takes its place when it does not answer.
    preferred: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    url: Url,
    http: reqwest::Client,
    /// The HTTP proxy that the environment names for this node.
    proxy: Option<String>,
}

/// The nodes, and what every call to them has.
#[derive(Clone, Debug)]
pub(crate) struct TransportSettings {
    urls: Vec<Url>,
    headers: header::HeaderMap,
    authorities: Vec<reqwest::Certificate>,
}

impl TransportSettings {
    pub(crate) fn of(urls: Vec<Url>) -> Self {
        Self { urls, headers: header::HeaderMap::new(), authorities: Vec::new() }
    }

    /// An error never shows the text: most of it may be an API key.
    pub(crate) fn set_api_key(&mut self, key: &str) -> Result<(), Error> {
        let key = key.trim();
        let has_form = key
            .strip_prefix("lgk_")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        let value = header::HeaderValue::from_str(&format!("Bearer {key}")).ok().filter(|_| has_form);
        let rule = "the API key has the wrong form: it is one line of letters, digits and _, and begins with lgk_";
        let mut value = value.ok_or_else(|| Error::Invalid(rule.to_owned()))?;
        value.set_sensitive(true);
        self.headers.insert(header::AUTHORIZATION, value);
        Ok(())
    }

    pub(crate) fn set_authorities(&mut self, pem: &[u8]) -> Result<(), Error> {
        let invalid = || Error::Invalid("there must be certificates in PEM".to_owned());
        self.authorities = reqwest::Certificate::from_pem_bundle(pem).map_err(|_| invalid())?;
        if self.authorities.is_empty() { Err(invalid()) } else { Ok(()) }
    }
}

/// A call without a 2xx answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The node has decided.
    Decided(Problem),
    /// The node cannot serve now, or the answer is not Latchgate's: nothing was done, or to repeat the call does it once.
    Later(Problem),
    /// No connection: the node has not seen it.
    NotSent(String),
    /// No answer: the node may have done it.
    NoAnswer(String),
}

impl Failure {
    /// Whether a node may have done it.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::NotSent(_) => false,
            // A 2xx that is not Latchgate's says nothing. Of the answers of 500 and above, those of a gateway and those about a defect say
            // nothing; and 408 may come after the gateway has passed the call on.
            Self::Decided(problem) | Self::Later(problem) => {
                (!(300..500).contains(&problem.status()) || problem.status() == 408)
                    && !["overloaded", "store-unavailable", "shutting-down", "state-unreadable"]
                        .contains(&problem.code())
            }
            Self::NoAnswer(_) => true,
        }
    }

    /// No node has answered, or the store does not answer the node.
    pub(crate) fn is_outage(&self) -> bool {
        self.is_silence() || self.problem().is_some_and(|problem| problem.code() == "store-unavailable")
    }

    /// No node has answered. Without a code, the answer is that of a gateway.
    fn is_silence(&self) -> bool {
        self.problem().is_none_or(|problem| (502..=504).contains(&problem.status()) && problem.code().is_empty())
    }

    pub(crate) fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Decided(problem) | Self::Later(problem) => Some(problem),
            Self::NotSent(_) | Self::NoAnswer(_) => None,
        }
    }

    /// The app has used up a quota at this node, which is no outage: a wait goes on.
    pub(crate) fn is_of_quota(&self) -> bool {
        matches!(self, Self::Later(problem) if problem.code() == "quota-reached")
    }

    pub(crate) fn into_error(self) -> Error {
        let is_of_quota = self.is_of_quota();
        match self {
            Self::Later(problem) if is_of_quota => Error::Refused(problem),
            Self::Decided(problem) => Error::Refused(problem),
            Self::Later(problem) => Error::Unreachable(problem.to_string()),
            Self::NotSent(reason) | Self::NoAnswer(reason) => Error::Unreachable(reason),
        }
    }
}

impl Transport {
    pub(crate) fn new(settings: &TransportSettings) -> Result<Self, Error> {
        // Another one may be installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let has_https = settings.urls.iter().any(|url| url.scheme() == "https");
        let build = |uses_proxies: bool| {
            let mut builder = reqwest::Client::builder();
            if !uses_proxies {
                builder = builder.no_proxy();
            }
            // The system trusts some 150 authorities. Reading them takes most of the time of a short command.
            if !settings.authorities.is_empty() || !(uses_proxies || has_https) {
                builder = builder.tls_certs_only(settings.authorities.iter().cloned());
            }
            builder
                .default_headers(settings.headers.clone())
                .user_agent(concat!("latchgate-client/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_MAX)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| Error::Invalid(reason_of(&error)))
        };
        let (direct, proxies) = (build(false)?, Matcher::from_env());
        let node = |url: &Url| {
            let uri: Option<http::Uri> = url.as_str().parse().ok().filter(|_| !is_loopback(url));
            let proxy = uri.and_then(|uri| proxies.intercept(&uri)).map(|proxy| proxy.uri().to_string());
            let http = if proxy.is_some() { build(true)? } else { direct.clone() };
            Ok(Node { url: url.clone(), http, proxy })
        };
        let nodes = settings.urls.iter().map(node).collect::<Result<Vec<_>, Error>>()?;
        // So that the clients of a cluster spread over its nodes.
        let preferred = AtomicUsize::new(rand::rng().random_range(0..nodes.len()));
        Ok(Self { nodes, preferred })
    }

    /// The index of the node that a call asks first. Other calls change it, so each call counts on from here by itself.
    pub(crate) fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// One request to the node with this index. If that node does not answer, the index becomes that of the next one.
    pub(crate) async fn call(
        &self,
        index: &mut usize,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        answer_max: Duration,
    ) -> Result<Value, Failure> {
        let asked = *index;
        let called = async {
            let until = Moment::now().plus(answer_max);
            let sent = timeout(answer_max, self.send(asked, method, path, body, |request| request)).await;
            let response = sent.unwrap_or_else(|_| Err(Failure::NoAnswer(self.says(asked, LATE))))?;
            read(response, needs(path), until.left().max(BODY_MIN)).await
        };
        let answer = called.await.map_err(|failure| checked(path, failure));
        if let Err(failure) = &answer {
            if !matches!(failure, Failure::Decided(_)) {
                self.avoid(index);
            }
            tracing::debug!(node = %self.says(asked, ""), path, ?failure, "the call failed");
        }
        answer
    }

    /// A response whose body is read by the caller, without a time limit.
    pub(crate) async fn stream(
        &self,
        index: &mut usize,
        path: &str,
        last_event_id: Option<&str>,
        begins_within: Duration,
    ) -> Result<Response, Failure> {
        let asked = *index;
        let add = |request: reqwest::RequestBuilder| match last_event_id {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let called = async {
            match self.send(asked, &Method::GET, path, None, add).await {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => Ok(response),
                Ok(response) => Err(read(response, &[], begins_within)
                    .await
                    .err()
                    .unwrap_or_else(|| Failure::NoAnswer("no stream".to_owned()))),
                Err(failure) => Err(failure),
            }
        };
        let answer = timeout(begins_within, called).await;
        let answer = answer.unwrap_or_else(|_| Err(Failure::NoAnswer(self.says(asked, LATE))));
        if matches!(&answer, Err(failure) if !matches!(failure, Failure::Decided(_))) {
            self.avoid(index);
        }
        answer
    }

    async fn send(
        &self,
        index: usize,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        add: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<Response, Failure> {
        let Node { url, http, .. } = &self.nodes[index];
        let base = url.as_str().trim_end_matches('/');
        let mut request = add(http.request(method.clone(), format!("{base}{path}")));
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.map_err(|error| {
            let reason = self.says(index, &reason_of(&error));
            if error.is_connect() { Failure::NotSent(reason) } else { Failure::NoAnswer(reason) }
        })
    }

    /// A reason with the base URL of the node, and with the HTTP proxy in between.
    pub(crate) fn says(&self, index: usize, reason: &str) -> String {
        let Node { url, proxy, .. } = &self.nodes[index];
        let proxy = proxy.as_ref().map(|proxy| format!(" through the HTTP proxy {proxy}"));
        format!("{}{}: {reason}", url.as_str().trim_end_matches('/'), proxy.unwrap_or_default())
    }

    /// Goes on to the next node, and makes it the preferred one unless another call has done so.
    pub(crate) fn avoid(&self, index: &mut usize) {
        let next = self.after(*index);
        let _ = self.preferred.compare_exchange(*index, next, Ordering::Relaxed, Ordering::Relaxed);
        *index = next;
    }

    /// The index of the node to ask after another one.
    pub(crate) fn after(&self, index: usize) -> usize {
        (index + 1) % self.nodes.len()
    }

    pub(crate) fn prefers(&self, url: &str) -> bool {
        let preferred = &self.nodes[self.preferred()].url;
        Url::parse(url).is_ok_and(|url| url == *preferred)
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How long one node may take to answer a call that ends at `until`: at most `answer_max`, and a share, so that each node can be
    /// tried, also behind a gateway.
    pub(crate) fn share(&self, answer_max: Duration, until: Moment) -> Duration {
        let shares = u32::try_from(self.nodes().max(SHARES_MIN)).unwrap_or(u32::MAX);
        answer_max.min((until.left() / shares).max(REQUEST_MIN))
    }

    /// Repeats a call that may be repeated, until a node decides or `until` has passed. As many calls as nodes are made in any
    /// case, so that each of them is called.
    pub(crate) async fn repeat(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        answer_max: Duration,
        until: Moment,
    ) -> Result<Value, Error> {
        self.repeat_until(method, path, body, answer_max, until).await.map_err(Failure::into_error)
    }

    /// As [`Self::repeat`], and returns the last failure.
    pub(crate) async fn repeat_until(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        answer_max: Duration,
        until: Moment,
    ) -> Result<Value, Failure> {
        let (mut pause, mut index) = (Pause::new(self.nodes()), self.preferred());
        loop {
            let failure = match self.call(&mut index, method, path, body, self.share(answer_max, until)).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Decided(_)) || !pause.after(&failure, until).await {
                return Err(pause.last(failure));
            }
        }
    }
}

/// The pauses between repeated calls: none until each node was called, then longer and longer, with jitter.
#[derive(Debug)]
pub(crate) struct Pause {
    nodes: usize,
    failures: usize,
    next: Duration,
    max: Duration,
    retry_after: Duration,
    retry_after_max: Duration,
    /// Why a call had no answer, before the time for one was over.
    seen: Option<String>,
    /// What a node has answered last.
    said: Option<Problem>,
}

impl Pause {
    pub(crate) fn new(nodes: usize) -> Self {
        let (retry_after, retry_after_max) = (Duration::ZERO, RETRY_AFTER_MAX);
        let (seen, said) = (None, None);
        Self { nodes, failures: 0, next: PAUSE_MIN, max: PAUSE_MAX, retry_after, retry_after_max, seen, said }
    }

    /// Before the renewal of a lease, which must not be lost by a pause, or the give-back of a claim.
    pub(crate) fn of_renewal(nodes: usize, ttl: Duration) -> Self {
        let max = (ttl / 15).min(PAUSE_MAX);
        Self { max, next: PAUSE_MIN.min(max), retry_after_max: ttl / 10, ..Self::new(nodes) }
    }

    /// How long to wait before the next call: not at all until each node was called.
    pub(crate) fn next(&mut self, failure: &Failure) -> Duration {
        let (own, asked_for) = self.own_and_asked_for(failure);
        own.max(asked_for)
    }

    /// The client's own pause, and what a node has asked for.
    fn own_and_asked_for(&mut self, failure: &Failure) -> (Duration, Duration) {
        self.failures += 1;
        match failure {
            Failure::Later(problem) => {
                let ms = problem.field("retry_after_ms").as_u64().unwrap_or(0);
                self.retry_after = self.retry_after.max(Duration::from_millis(ms)).min(self.retry_after_max);
                if !failure.is_silence() {
                    self.said = Some(problem.clone());
                }
            }
            Failure::NotSent(reason) | Failure::NoAnswer(reason) if !reason.contains(LATE) => {
                self.seen = Some(reason.clone());
            }
            _ => {}
        }
        if !self.failures.is_multiple_of(self.nodes) {
            return (Duration::ZERO, Duration::ZERO);
        }
        let own = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.max);
        (own, std::mem::take(&mut self.retry_after))
    }

    /// The failure that ends a call. A node that has answered before is not away; and the last of the time is too short for an answer, so what
    /// earlier calls have shown says more.
    pub(crate) fn last(&self, failure: Failure) -> Failure {
        match (failure, &self.said, &self.seen) {
            (failure, Some(said), _) if failure.is_silence() => Failure::Later(said.clone()),
            (Failure::NoAnswer(reason), None, Some(seen)) if reason.contains(LATE) => Failure::NoAnswer(seen.clone()),
            (failure, ..) => failure,
        }
    }

    /// Waits before the next call. Returns false, at once, if that call would have too little time until `until`. An outage may be over in the
    /// last of that time.
    pub(crate) async fn after(&mut self, failure: &Failure, until: Moment) -> bool {
        let (own, asked_for) = self.own_and_asked_for(failure);
        let left = until.left().saturating_sub(REQUEST_MIN);
        let pause = own.min(left).max(asked_for);
        if self.failures >= self.nodes && (left.is_zero() || left < pause) {
            return false;
        }
        sleep_until(Moment::now().plus(pause)).await;
        true
    }
}

/// Whether the answer is about this key: something between the client and the node may change the path of a request, `a//b` into `a/b` say.
///
/// # Errors
/// [`Error::Refused`] with the code `other-key` if it is not.
pub fn is_about(key: &str, answer: &Value) -> Result<(), Error> {
    if answer["key"] == key {
        return Ok(());
    }
    let detail = format!(
        "The answer is about the key {}, not {key:?}: a proxy in front of the node may change the paths of requests.",
        answer["key"]
    );
    let fields = json!({ "code": "other-key", "detail": detail }).as_object().cloned().unwrap_or_default();
    Err(Error::Refused(Problem::new(200, fields)))
}

/// A refusal about the key of another path than the one that was called.
fn checked(path: &str, failure: Failure) -> Failure {
    let Failure::Decided(problem) = &failure else { return failure };
    let key = path.strip_prefix("/v1/locks/").and_then(|rest| rest.split(['/', '?']).next());
    let (Some(key), false) = (key, problem.field("key").is_null()) else { return failure };
    match is_about(&percent_decode_str(key).decode_utf8_lossy(), &json!({ "key": problem.field("key") })) {
        Err(Error::Refused(other)) => Failure::Decided(other),
        _ => failure,
    }
}

/// Whether the node is on this machine, which no HTTP proxy reaches.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().map_or(host == "localhost", |address| address.is_loopback())
}

fn is_event_stream(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|content_type| content_type.starts_with("text/event-stream"))
}

/// Whether a refusal is that of a node: its type names its code.
fn is_of_node(fields: &Map<String, Value>) -> bool {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    text("type").strip_prefix("/errors/").is_some_and(|code| !code.is_empty() && code == text("code"))
}

/// What an answer that lets the client proceed has at least.
fn needs(path: &str) -> &'static [&'static str] {
    match path.strip_prefix("/v1/operations/").and_then(|rest| rest.rsplit('/').next()) {
        Some("pre") => &["id", "stamp", "ttl_ms"],
        Some("heartbeat") => &["ttl_ms"],
        Some("post" | "enter") => &["outcome"],
        _ => &[],
    }
}

/// The body, or why it is not whole.
async fn whole(mut response: Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(|error| reason_of(&error))? {
        body.extend_from_slice(&bytes);
        if body.len() > BODY_BYTES_MAX {
            return Err("it is too long".to_owned());
        }
    }
    Ok(body)
}

/// Once there is a status, the call has an answer. Without a type that names its code, a refusal is that of a gateway: with 502, 503 and 504 it
/// says that it does not reach the node, and a 2xx that is not JSON, or is cut, is as good as none. Every other one is foreign.
async fn read(response: Response, needs: &[&str], body_max: Duration) -> Result<Value, Failure> {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = timeout(body_max, whole(response)).await.unwrap_or_else(|_| Err(LATE.to_owned()));
    let answer: Option<Value> = body.as_ref().ok().and_then(|body| serde_json::from_slice(body).ok());
    let is_success = (200..300).contains(&status);
    let fields = match answer {
        None if is_success => {
            let reason = body.err().unwrap_or_else(|| format!("the answer {status} is not from Latchgate"));
            return Err(Failure::NoAnswer(reason));
        }
        Some(answer) if is_success && needs.iter().all(|name| has(&answer, name)) => return Ok(answer),
        Some(Value::Object(fields)) if !is_success && is_of_node(&fields) => Some(fields),
        _ => None,
    };
    // Nothing of a foreign body is read.
    let is_foreign = fields.is_none();
    let mut fields = fields.unwrap_or_default();
    if let (false, Some(seconds)) = (fields.contains_key("retry_after_ms"), retry_after) {
        let seconds: u64 = seconds;
        fields.insert("retry_after_ms".to_owned(), Value::from(seconds.saturating_mul(1_000)));
    }
    if let Err(reason) = &body {
        fields.insert("detail".to_owned(), format!("the body of the answer cannot be read: {reason}").into());
    }
    let is_outage = (502..=504).contains(&status) && body.is_ok();
    if is_foreign && !is_outage {
        fields.insert("code".to_owned(), FOREIGN.into());
    }
    let problem = Problem::new(status, fields);
    match status {
        _ if is_foreign => Err(Failure::Later(problem)),
        429 | 502..=599 => Err(Failure::Later(problem)),
        // A defect may be that of one node, and says nothing about what was done.
        500 if problem.code() == "internal-error" => Err(Failure::Later(problem)),
        _ => Err(Failure::Decided(problem)),
    }
}

fn has(answer: &Value, name: &str) -> bool {
    match name {
        "ttl_ms" => answer[name].as_u64().is_some_and(|ms| ms > 0),
        _ => answer[name].as_str().is_some_and(|text| !text.is_empty()),
    }
}

/// The error with its causes, without the URL. Two mistakes are usual with `https://`: the wrong port, whose answer is not TLS, and one
/// self-signed certificate both for the node and for its authority, as `openssl req -x509` makes it.
fn reason_of(error: &reqwest::Error) -> String {
    let mut reason = if error.is_timeout() { LATE.to_owned() } else { String::new() };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if !reason.is_empty() {
            reason.push_str(": ");
        }
        reason.push_str(&error.to_string());
        cause = error.source();
    }
    match reason {
        reason if reason.is_empty() => "the request failed".to_owned(),
        reason if reason.contains("InvalidContentType") => {
            format!("the answer is not TLS: is it http:// there? ({reason})")
        }
        reason if reason.contains("UnknownIssuer") => {
            format!(
                "no authority that this client trusts has signed the node's certificate: for your own, see LATCHGATE_CA of the commands, or \
                 `Client::authorities` ({reason})"
            )
        }
        reason if reason.contains("CaUsedAsEndEntity") => {
            format!(
                "the node's certificate is that of an authority (CA:TRUE): with that one, sign another one for the node ({reason})"
            )
        }
        reason => reason,
    }
}

/// A key or a name as a part of a path or a query, for [`crate::Client::call`].
#[must_use]
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
