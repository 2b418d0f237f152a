//! What must be equal in all requests that get one answer. Requests that two readers could read differently are refused.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::Method;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Request, request::Parts};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use latchgate_core::gate::idempotency_key;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::{Problem, Proxy, overloaded, same};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What the body of a request, or the answer to it, takes of the memory.
pub type Memory = OwnedSemaphorePermit;

impl Proxy {
    /// The key of a request that the gate must know of. Its host is in the header `Host` then.
    ///
    /// # Errors
    /// `invalid-request` or `method-not-allowed`.
    pub(super) fn checked_key<B>(&self, request: &mut Request<B>) -> Result<Option<String>, Problem> {
        if request.method() == Method::CONNECT {
            return Err(Problem::new(405, "method-not-allowed", "The proxy opens no tunnels."));
        }
        single(request.headers(), &header::HOST)?;
        if let Some(authority) = request.uri().authority() {
            let host = Some(authority.as_str()).filter(|host| !host.contains('@')).and_then(|host| host.parse().ok());
            let host = host.ok_or_else(|| Problem::invalid("The target must not name a user."))?;
            request.headers_mut().insert(header::HOST, host);
        }
        if !self.settings.methods.contains(request.method()) {
            return Ok(None);
        }
        let Some(value) = single(request.headers(), &KEY)? else {
            let missing = Problem::invalid("The header Idempotency-Key is needed here.");
            return if self.settings.requires_key { Err(missing) } else { Ok(None) };
        };
        let key = value.to_str().ok().and_then(idempotency_key);
        let rule = "Idempotency-Key must be ASCII, in quotes or without any quotes, not empty, and at most 8 KiB long.";
        key.map(Some).ok_or_else(|| Problem::invalid(rule))
    }

    /// The contents of the operation, and what may not differ between requests with the same contents.
    ///
    /// Two callers may choose the same key. Only digests of their headers leave the proxy.
    pub(super) fn identity(&self, key: &str, head: &Parts, body: &[u8]) -> Result<(Value, String), Problem> {
        let mut caller = vec![single(&head.headers, &header::HOST)?.map(|host| digest(&same::host(host.as_bytes())))];
        for name in &self.settings.caller_headers {
            let value = single(&head.headers, name)?.map(HeaderValue::as_bytes);
            let is_login = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION].contains(name);
            caller.push(value.map(|value| if is_login { digest(&same::login(value)) } else { digest(value) }));
        }
        let target = head.uri.path_and_query().map_or_else(String::new, |target| same::target(target.as_str()));
        let kind = single(&head.headers, &header::CONTENT_TYPE)?.map_or(&b""[..], HeaderValue::as_bytes);
        let coding = single(&head.headers, &header::CONTENT_ENCODING)?.map_or(&b""[..], HeaderValue::as_bytes);
        let mut checked = Sha256::new();
        let mut add = |part: &[u8]| {
            checked.update((part.len() as u64).to_be_bytes());
            checked.update(part);
        };
        add(head.method.as_str().as_bytes());
        add(target.as_bytes());
        for part in same::body(kind, coding, body) {
            add(&part);
        }
        Ok((json!({ "key": key, "caller": caller }), hex::encode(checked.finalize())))
    }

    /// Receives a whole body, with its part of the memory.
    ///
    /// # Errors
    /// `body-too-large`, or `overloaded` if other bodies use the memory; `body-timeout`; or `invalid-request` if the connection ended
    /// before the body did.
    pub(super) async fn receive(&self, mut body: Incoming) -> Result<(Bytes, Memory), Problem> {
        let max = self.settings.body_bytes_max;
        let rule = format!("The body of a request with a key may have at most {max} bytes.");
        let mut memory = Arc::clone(&self.memory).try_acquire_many_owned(0).map_err(|_| overloaded())?;
        let (mut bytes, mut refusal) = (BytesMut::new(), None);
        let receiving = async {
            while let Some(frame) = body.frame().await {
                let data =
                    frame.map_err(|_| Problem::invalid("The body ended early."))?.into_data().unwrap_or_default();
                let len = bytes.len() + data.len();
                if len > max {
                    // Clients that send all before they read must see the refusal.
                    refusal = Some(Problem::new(413, "body-too-large", &rule));
                } else if !self.reserve(&mut memory, len) {
                    refusal = Some(overloaded());
                } else if refusal.is_none() {
                    bytes.extend_from_slice(&data);
                }
            }
            Ok(())
        };
        let time = self.settings.client_timeout.saturating_mul(1 + u32::try_from(max >> 20).unwrap_or(u32::MAX - 1));
        let late = |_| Err(Problem::new(400, "body-timeout", "The body did not arrive in time."));
        let received = timeout(time, receiving).await.unwrap_or_else(late);
        refusal.or(received.err()).map_or_else(|| Ok((bytes.freeze(), memory)), Err)
    }

    /// Whether there is memory for so many bytes.
    pub(super) fn reserve(&self, memory: &mut Memory, len: usize) -> bool {
        let more = len.div_ceil(1_024).saturating_sub(memory.num_permits());
        let more = Arc::clone(&self.memory).try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX));
        more.map(|more| memory.merge(more)).is_ok()
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The value of a header that must not be sent twice.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Problem::invalid(&format!("The header {name} must be sent once."))),
    }
}
