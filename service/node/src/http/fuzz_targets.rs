//! What clients send, for the fuzz targets: each reader takes any bytes, and either reads them or refuses them.

use axum::http::{Request, Uri};
use latchgate_core::{Address, App, Key, Timestamp};
use serde::de::DeserializeOwned;

use super::body;
use super::endpoints::Router;
use super::leases::{ReleaseLeasesRequest, RenewLeasesRequest};
use super::locks::acquire::AcquireRequest;
use super::multilocks::MultilockRequest;
use super::operations::requests::{EnterRequest, PostRequest, PreRequest, PreviewRequest};
use super::target;
use super::ticket::Tickets;
use crate::store::EventCursor;

/// The first line is a URL, the rest a body.
pub fn request(input: &[u8]) {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let json = input.get(line + 1..).unwrap_or_default();
    if let Ok(uri) = Uri::try_from(&input[..line])
        && target::check(&uri, target::has_api_key(&uri)).is_ok()
    {
        let mut request = Request::post(uri).body(()).expect("a URL");
        let _ = Router::new().find(&mut request);
        let _ = super::query::app(request.uri());
    }
    reads::<AcquireRequest>(json);
    reads::<MultilockRequest>(json);
    reads::<RenewLeasesRequest>(json);
    reads::<ReleaseLeasesRequest>(json);
    reads::<PreRequest>(json);
    reads::<PreviewRequest>(json);
    reads::<PostRequest>(json);
    reads::<EnterRequest>(json);
}

fn reads<T: DeserializeOwned>(json: &[u8]) {
    let _ = body::parse::<T>(json);
}

/// No ticket is read that this cluster did not issue.
pub fn ticket(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let address = Address { app: App::default(), key: Key::parse("key").expect("a name") };
    let redeemed =
        Tickets::new(b"a secret of all nodes", u64::MAX).redeem(text, &[(&address, None)], Timestamp::default());
    assert!(redeemed.is_err(), "a forged ticket: {text}");
}

/// A cursor that is read is written as it was read.
pub fn cursor(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(cursor) = text.parse::<EventCursor>() {
        assert_eq!(cursor.to_string().parse::<EventCursor>().ok(), Some(cursor), "{text}");
    }
}
