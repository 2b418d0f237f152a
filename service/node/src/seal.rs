//! Sealing: what a client carries from one node to another, and cannot change.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Seals with the secret that all nodes share (HMAC-SHA-256, RFC 2104).
#[derive(Clone)]
pub struct Sealer(Hmac<Sha256>);

impl Sealer {
    pub fn new(secret: &[u8]) -> Self {
        // HMAC takes a key of any length.
        Self(Hmac::new_from_slice(secret).expect("a key of any length"))
    }

    /// `{payload}.{code}`, both in base64 as URLs have it.
    pub fn seal(&self, purpose: &str, payload: &[u8]) -> String {
        let mac = self.mac(purpose, payload).finalize().into_bytes();
        format!("{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(mac))
    }

    /// The payload; `None` if it was not sealed with this secret for this purpose.
    pub fn open(&self, purpose: &str, sealed: &str) -> Option<Vec<u8>> {
        let (payload, mac) = sealed.split_once('.')?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.mac(purpose, &payload).verify_slice(&mac).ok()?;
        Some(payload)
    }

    /// The purpose is part of what is sealed: a ticket is no stamp.
    fn mac(&self, purpose: &str, payload: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(purpose.as_bytes());
        mac.update(b"\0");
        mac.update(payload);
        mac
    }
}
