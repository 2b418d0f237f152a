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

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Clones share the certificate.
#[derive(Clone, Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Tls {
    /// `cert` is a PEM file with the certificate and those between it and the root, `key` one with its private key.
    ///
    /// # Errors
    /// Says what is wrong with the files.
    pub async fn new(cert: &Path, key: &Path) -> anyhow::Result<Self> {
        let config = Arc::new(RwLock::new(Arc::new(read(cert, key).await?)));
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Reads the files again. Connections that are open keep the certificate that they have.
    ///
    /// # Errors
    /// Says what is wrong with the files. The certificate that was read before stays in use.
    pub async fn reload(&self) -> anyhow::Result<()> {
        let config = Arc::new(read(&self.cert, &self.key).await?);
        *self.config.write() = config;
        Ok(())
    }

    /// # Errors
    /// When the client does not complete the handshake in time, or does not speak TLS.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read());
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

async fn read(cert: &Path, key: &Path) -> anyhow::Result<ServerConfig> {
    let unusable = || format!("cannot read the certificate in {} (--tls-cert)", cert.display());
    let text = files::read(cert).await.with_context(unusable)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().with_context(unusable)?;
    ensure!(!chain.is_empty(), "{} (--tls-cert) has no certificate in PEM", cert.display());
    let unusable = || format!("cannot read the private key in {} (--tls-key)", key.display());
    let text = files::read(key).await.with_context(unusable)?;
    let private = PrivateKeyDer::from_pem_slice(&text).with_context(unusable)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = config.with_single_cert(chain, private).with_context(|| {
        format!("{} (--tls-cert) and {} (--tls-key) cannot be used together", cert.display(), key.display())
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
