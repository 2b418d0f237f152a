//! TLS for clients: the certificate and its key, read again on SIGHUP.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::response::IntoResponse;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use latchgate_core::Timestamp;
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::problem::{Code, Problem};
use crate::files;
use crate::format::parse_rfc3339;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Clones share the certificate.
#[derive(Clone, Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    read: Arc<RwLock<Read>>,
}

/// What was read from the files.
#[derive(Debug)]
struct Read {
    config: Arc<ServerConfig>,
    /// When the first certificate of the chain expires.
    expires_at: Option<Timestamp>,
}

impl Tls {
    /// `cert` is a PEM file with the certificate and those between it and the root, `key` one with its private key.
    ///
    /// # Errors
    /// Says what is wrong with the files.
    pub async fn new(cert: &Path, key: &Path) -> anyhow::Result<Self> {
        let read = Arc::new(RwLock::new(read(cert, key).await?));
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), read })
    }

    /// Reads the files again. Connections that are open keep the certificate that they have.
    ///
    /// # Errors
    /// Says what is wrong with the files. The certificate that was read before stays in use.
    pub async fn reload(&self) -> anyhow::Result<()> {
        let read = read(&self.cert, &self.key).await?;
        *self.read.write() = read;
        Ok(())
    }

    /// When the first certificate of the chain in use expires; `None` if it does not say.
    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        self.read.read().expires_at
    }

    /// # Errors
    /// When the client does not complete the handshake in time, or does not speak TLS.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.read.read().config);
        let accepted = async {
            let mut first = [0];
            stream.peek(&mut first).await?;
            // A method of HTTP; a handshake begins with another byte.
            if first[0].is_ascii_uppercase() {
                refuse(stream).await;
                return Err(io::Error::other("HTTP without TLS"));
            }
            TlsAcceptor::from(config).accept(stream).await
        };
        timeout(HANDSHAKE_TIMEOUT, accepted).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Without an answer, all that the client would see is a broken connection.
async fn refuse(stream: TcpStream) {
    let refused = service_fn(|_| async {
        let detail = "This node serves HTTPS: its URL begins with https://.";
        Ok::<_, Infallible>(Problem::new(Code::InvalidRequest, detail).into_response())
    });
    let _ = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), refused).await;
}

async fn read(cert: &Path, key: &Path) -> anyhow::Result<Read> {
    let unusable = || format!("cannot read the certificate in {} (--tls-cert)", cert.display());
    let text = files::read(cert).await.with_context(unusable)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().with_context(unusable)?;
    ensure!(!chain.is_empty(), "{} (--tls-cert) has no certificate in PEM", cert.display());
    let unusable = || format!("cannot read the private key in {} (--tls-key)", key.display());
    let text = files::read(key).await.with_context(unusable)?;
    let private = PrivateKeyDer::from_pem_slice(&text).with_context(unusable)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let expires_at = chain.iter().filter_map(|certificate| not_after(certificate)).min();
    let config = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = config.with_single_cert(chain, private).with_context(|| {
        format!("{} (--tls-cert) and {} (--tls-key) cannot be used together", cert.display(), key.display())
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Read { config: Arc::new(config), expires_at })
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;

/// The end of a certificate's validity (RFC 5280), to which rustls gives no access.
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = element(certificate)?;
    let (to_be_signed, _) = element(certificate.of(SEQUENCE)?)?;
    let mut fields = to_be_signed.of(SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.1;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.1;
    }
    let (validity, _) = element(fields)?;
    let (_, end) = element(validity.of(SEQUENCE)?)?;
    let (Element { tag, content }, _) = element(end)?;
    let text = str::from_utf8(content).ok()?;
    let century = if tag != UTC_TIME {
        ""
    } else if *text >= *"5" {
        "19"
    } else {
        "20"
    };
    let text = format!("{century}{text}");
    let part = |from: usize, to: usize| text.get(from..to);
    let date = [part(0, 4)?, part(4, 6)?, part(6, 8)?].join("-");
    let time = [part(8, 10)?, part(10, 12)?, part(12, 14)?].join(":");
    parse_rfc3339(&format!("{date}T{time}Z"))
}

/// One of ASN.1, in DER.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
}

impl<'a> Element<'a> {
    fn of(self, tag: u8) -> Option<&'a [u8]> {
        (self.tag == tag).then_some(self.content)
    }
}

/// The first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let ([tag, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match first.checked_sub(0x80) {
        None => (usize::from(*first), rest),
        Some(digits) => {
            let (digits, rest) = rest.split_at_checked(digits.into())?;
            (digits.iter().fold(0_usize, |length, digit| length.saturating_mul(256) | usize::from(*digit)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((Element { tag: *tag, content }, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::format::rfc3339;

    #[test]
    fn the_end_of_a_certificate_is_known() {
        let key = KeyPair::generate().unwrap();
        // RFC 5280 has two forms of times: the second one from 2050 on.
        for year in [1999, 2031, 2049, 2050, 2950] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 2, 3);
            let certificate = params.self_signed(&key).unwrap();
            let end = not_after(certificate.der()).map(rfc3339);
            assert_eq!(end, Some(format!("{year}-02-03T00:00:00.000Z")));
            for cut in 0..certificate.der().len() {
                assert_eq!(not_after(&certificate.der()[..cut]), None, "{year}, {cut} bytes");
            }
        }
    }
}
