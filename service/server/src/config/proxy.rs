//! The command `proxy`.

use std::time::Duration;

use axum::http::{HeaderName, Method, Uri};
use clap::{Args, ValueEnum};
use latchgate_node::listen::Listen;
use latchgate_proxy::Settings;

use super::duration::some_duration;
use super::{LogArgs, NodeArgs, positive};

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// The service behind the proxy: http://HOST:PORT.
    #[arg(long, value_name = "URL", env = "LATCHGATE_PROXY_UPSTREAM", value_parser = server)]
    pub upstream: Uri,

    /// The address that the proxy listens on: HOST:PORT, :PORT or PORT. Without a host: 127.0.0.1. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", env = "LATCHGATE_PROXY_LISTEN", default_value = "127.0.0.1:7080")]
    pub listen: Listen,

    #[command(flatten)]
    pub node: NodeArgs,

    /// The name of the gate's operations. Proxies of different upstreams need different names.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_PROXY_OPERATION", default_value = "proxy")]
    pub operation: String,

    /// The methods of which an `Idempotency-Key` counts. Requests with other methods are passed.
    #[arg(
        long,
        value_name = "METHODS",
        env = "LATCHGATE_PROXY_METHODS",
        value_delimiter = ',',
        default_value = "POST,PATCH"
    )]
    pub methods: Vec<Method>,

    /// Callers that differ in one of these headers have keys of their own. Choose headers that stay the same when a caller repeats a
    /// request: not the default if access tokens are renewed, cookies change, or requests are signed. Empty: all callers share their
    /// keys.
    #[arg(long, value_name = "NAMES", env = "LATCHGATE_PROXY_CALLER_HEADER", default_value = "authorization,cookie")]
    pub caller_header: HeaderNames,

    /// Refuse requests of these methods that have no key.
    #[arg(long, env = "LATCHGATE_PROXY_REQUIRE_KEY")]
    pub require_key: bool,

    /// Without a heartbeat of the proxy for so long, the outcome of a call is unknown.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_PROXY_LEASE", default_value = "60s", value_parser = some_duration)]
    pub lease: Duration,

    /// What happens while no node answers, or the gate's store does not, for --retry-for.
    #[arg(long, value_name = "CHOICE", env = "LATCHGATE_PROXY_ON_OUTAGE", default_value = "closed")]
    pub on_outage: ProxyOnOutage,

    /// How long an answer is stored.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_PROXY_RETENTION", default_value = "1d", value_parser = some_duration)]
    pub retention: Duration,

    /// Longest body of a request with a key, and of the answer to it, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_PROXY_BODY_BYTES_MAX", default_value_t = 8 << 20)]
    pub body_bytes_max: usize,

    /// Longest time for a connection to the upstream, for a client's headers, and for each MiB of --body-bytes-max.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_PROXY_CLIENT_TIMEOUT", default_value = "10s", value_parser = some_duration)]
    pub client_timeout: Duration,

    /// Longest pause of the upstream before or within its answer. Then the outcome of the call is unknown. Of a request without a
    /// key: longest pause of the upload and before the answer.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_PROXY_UPSTREAM_TIMEOUT", default_value = "60s", value_parser = some_duration)]
    pub upstream_timeout: Duration,

    /// Longest time that a node may take to answer.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_PROXY_GATE_TIMEOUT", default_value = "3s", value_parser = some_duration)]
    pub gate_timeout: Duration,

    /// Most connections of clients at once, together with calls whose clients have gone. A further connection takes the place of the
    /// oldest one without a call, or waits.
    #[arg(long, value_name = "N", env = "LATCHGATE_PROXY_CONNECTIONS_MAX", default_value_t = 1_000, value_parser = positive)]
    pub connections_max: usize,

    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyOnOutage {
    /// The upstream is not called.
    Closed,
    /// The upstream is called, and nothing keeps two calls with one key apart. The answers are entered afterwards, for as long as the proxy
    /// lives.
    Proceed,
}

/// Names of headers with commas in between.
#[derive(Clone, Debug)]
pub struct HeaderNames(Vec<HeaderName>);

impl std::str::FromStr for HeaderNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let parsed = names.map(|name| name.parse().map_err(|_| format!("{name:?} is not the name of a header")));
        parsed.collect::<Result<_, _>>().map(Self)
    }
}

fn server(url: &str) -> Result<Uri, String> {
    let uri = url.parse().ok().filter(|uri: &Uri| uri.scheme_str() == Some("http") && uri.query().is_none());
    let uri = uri.filter(|uri| uri.path() == "/" && uri.authority().is_some_and(|host| !host.as_str().contains('@')));
    uri.ok_or_else(|| "must be http://HOST:PORT".to_owned())
}

impl ProxyArgs {
    pub fn settings(&self) -> Settings {
        Settings {
            upstream: self.upstream.clone(),
            operation: self.operation.clone(),
            methods: self.methods.clone(),
            caller_headers: self.caller_header.0.clone(),
            requires_key: self.require_key,
            proceeds_on_outage: self.on_outage == ProxyOnOutage::Proceed,
            lease: self.lease,
            retention: self.retention,
            body_bytes_max: self.body_bytes_max,
            client_timeout: self.client_timeout,
            upstream_timeout: self.upstream_timeout,
            gate_timeout: self.gate_timeout,
            connections_max: self.connections_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_an_address_without_a_path() {
        for text in ["http://127.0.0.1:8000/", "http://billing", "http://[::1]:80"] {
            assert!(server(text).is_ok(), "{text}");
        }
        for text in
            ["", "127.0.0.1:8000", "https://host", "http://", "http://host/path", "http://host?query", "http://a@host"]
        {
            assert!(server(text).is_err(), "{text}");
        }
    }

    #[test]
    fn callers_may_be_told_apart_by_several_headers_or_none() {
        assert_eq!("X-User, Cookie".parse::<HeaderNames>().unwrap().0, ["x-user", "cookie"]);
        assert!("".parse::<HeaderNames>().unwrap().0.is_empty() && "a b".parse::<HeaderNames>().is_err());
    }
}
