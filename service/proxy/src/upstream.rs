//! HTTP/1.1 to the upstream, with a connection for each request.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use axum::http::{Extensions, Request, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::sync::Notify;

use crate::{Problem, Proxy, ProxyResult};

/// Headers that concern one connection only.
const HOPS: &str = "connection expect keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer \
                    transfer-encoding upgrade";
/// Most headers of an answer.
const HEADERS_MAX: usize = 2_000;
pub type Upstream = Client<HttpConnector, Body>;

pub fn client(connect_max: Duration) -> Upstream {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_max));
    // On a connection that was used before, a request could be sent twice.
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_max_idle_per_host(0).retry_canceled_requests(false).http1_max_headers(HEADERS_MAX).build(connector)
}

/// The upstream was called, and it is not known what it has done.
pub fn broken_off() -> Problem {
    Problem::new(502, "upstream-failed", "The upstream broke off, or did not answer in time.")
}

impl Proxy {
    /// Calls the upstream: with the client's `Host`, if it has sent one.
    ///
    /// # Errors
    /// [`broken_off`]; any other problem means that nothing was done.
    pub(super) async fn call(&self, mut head: Parts, body: Body) -> ProxyResult {
        without_hops(&mut head.headers);
        let mut target = self.settings.upstream.clone().into_parts();
        target.path_and_query = head.uri.path_and_query().cloned().or(target.path_and_query);
        head.uri = Uri::from_parts(target).map_err(|_| Problem::invalid("The target must be a path."))?;
        (head.version, head.extensions) = (Version::HTTP_11, Extensions::new());
        // An upload may take long: only a pause within it counts.
        let progressed = Arc::new(Notify::new());
        let progress = Arc::clone(&progressed);
        let body = Body::new(body.inspect_frame(move |_| progress.notify_one()));
        let mut answered = pin!(self.upstream.request(Request::from_parts(head, body)));
        let answered = loop {
            tokio::select! {
                answered = &mut answered => break answered,
                () = progressed.notified() => {}
                () = tokio::time::sleep(self.settings.upstream_timeout) => return Err(broken_off()),
            }
        };
        let mut response = answered.map_err(|error| if error.is_connect() { unreachable() } else { broken_off() })?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(broken_off());
        }
        without_hops(response.headers_mut());
        // The client's connection is the proxy's, whatever the upstream speaks.
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(Body::new))
    }
}

fn unreachable() -> Problem {
    Problem::new(502, "upstream-unreachable", "The upstream cannot be reached. Nothing was done.").for_now()
}

/// Removes the headers that concern one connection only, and a length beside chunks, which does not count (RFC 9112, 6.3).
fn without_hops(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let connection: Vec<_> = headers.get_all(header::CONNECTION).iter().cloned().collect();
    let named = connection.iter().filter_map(|value| value.to_str().ok()).flat_map(|names| names.split(','));
    for name in named.chain(HOPS.split(' ')) {
        headers.remove(name.trim());
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "close, X-Mine"), ("x-mine", "1"), ("te", "trailers"), ("x-other", "2")] {
            headers.insert(name, value.parse().unwrap());
        }
        without_hops(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }
}
