//! TLS: from clients to nodes, and from nodes to their stores, with a private certificate authority.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use latchgate_testkit::free_port;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, give_to_postgres};
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::{Certificate, Client};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::world::{ADMIN, LONG, OPERATOR};
use crate::client::{BIN, acquire, begun, granted, latchgate, run};
use crate::start::refused;

/// A certificate authority, and a server's certificate for `localhost` that it has signed, in files.
struct Authority {
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let authority = Self { dir };
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(authority.path("ca.key"), key.serialize_pem()).unwrap();
        fs::write(authority.path("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(authority.path("cert.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        fs::write(authority.path("key.pem"), key.serialize_pem()).unwrap();
        fs::set_permissions(authority.path("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A client that trusts this authority alone.
    fn client(&self) -> Client {
        let ca = Certificate::from_pem(&fs::read(self.path("ca.pem")).unwrap()).unwrap();
        Client::builder().tls_certs_only([ca]).no_proxy().timeout(LONG).build().unwrap()
    }

    async fn acquires(&self, node: &Node) -> bool {
        let url = format!("https://localhost:{}/v1/locks/k/acquire", node.port());
        let answer = self.client().post(url).body(r#"{"ttl_ms":60000}"#).send().await;
        answer.is_ok_and(|answer| [200, 423].contains(&answer.status().as_u16()))
    }
}

async fn secure(authority: &Authority, args: &[&str]) -> Node {
    let (cert, key) = (authority.text("cert.pem"), authority.text("key.pem"));
    let args: Vec<&str> = [&["--tls-cert", &cert, "--tls-key", &key], args].concat();
    Node::start(BIN, &args).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reloads_its_certificate_on_sighup_unless_the_new_one_is_broken() {
    let (first, second) = (Authority::new(), Authority::new());
    let mut node = secure(&first, &[]).await;
    assert!(first.acquires(&node).await && !second.acquires(&node).await);
    let plain = acquire(&node, "k", json!({})).await;
    assert!(plain.status == 400 && plain.code() == "invalid-request", "{}", plain.body);
    assert!(plain.text("detail").contains("https://"), "{}", plain.body);
    let page = first.client().get(format!("https://localhost:{}/metrics", node.port())).send().await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("\nlatchgate_tls_certificate_expires_seconds "), "{page}");

    fs::write(first.path("cert.pem"), "-----BEGIN CERTIFICATE-----\nbroken\n").unwrap();
    node.hang_up();
    until("the node says that the certificate is broken", || async { node.log().contains("read before") }).await;
    assert!(first.acquires(&node).await);
    for name in ["cert.pem", "key.pem"] {
        fs::copy(second.path(name), first.path(name)).unwrap();
    }
    node.hang_up();
    until("the node has the new certificate", || async { second.acquires(&node).await }).await;
    assert!(!first.acquires(&node).await);

    // A FIFO in its place is refused, and does not stop the node.
    fs::remove_file(first.path("cert.pem")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(first.path("cert.pem")).status().unwrap().success());
    node.hang_up();
    until("the node says that it is no file", || async { node.log().contains("not a regular file") }).await;
    assert!(second.acquires(&node).await);

    let (port, cert) = (node.port().to_string(), first.text("cert.pem"));
    let health = latchgate(&["health", "--listen", &port, "--tls-cert", &cert]).await;
    assert!(health.status.success(), "{}", String::from_utf8_lossy(&health.stderr));
    node.terminate();
    assert!(node.wait_exit(LONG).await.is_some_and(|status| status.success()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_begin_no_handshake_do_not_keep_others_out() {
    let authority = Authority::new();
    let node = secure(&authority, &["--connections-max", "10"]).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(TcpStream::connect(("127.0.0.1", node.port())).await.unwrap());
    }
    assert!(authority.acquires(&node).await);
    // The oldest were closed for it.
    let mut bytes = [0];
    assert!(matches!(timeout(LONG, silent[0].read(&mut bytes)).await.unwrap(), Ok(0) | Err(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_call_a_node_over_tls_and_verify_its_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (cert, key) = (authority.text("cert.pem"), authority.text("key.pem"));
    let node = Node::start_with(BIN, &["--tls-cert", &cert, "--tls-key", &key], OPERATOR).await;
    let https = format!("https://localhost:{}", node.port());
    assert_eq!(listed(&https, &authority.text("ca.pem")).await, "");
    let said = listed(&https, &other.text("ca.pem")).await;
    assert!(said.contains("invalid peer certificate"), "{said}");
    let said = listed(&https.replace("https", "http"), &authority.text("ca.pem")).await;
    assert!(said.contains("This node serves HTTPS"), "{said}");

    // One certificate for both, as `openssl req -x509` makes it.
    fs::copy(authority.path("ca.pem"), authority.path("cert.pem")).unwrap();
    fs::copy(authority.path("ca.key"), authority.path("key.pem")).unwrap();
    let node = Node::start_with(BIN, &["--tls-cert", &cert, "--tls-key", &key], OPERATOR).await;
    let said = listed(&format!("https://localhost:{}", node.port()), &authority.text("ca.pem")).await;
    assert!(said.contains("that of an authority (CA:TRUE)"), "{said}");
}

/// What `latchgate app list` says if it fails.
async fn listed(url: &str, ca: &str) -> String {
    let env = [("LATCHGATE_URL", url), ("LATCHGATE_API_KEY", ADMIN), ("LATCHGATE_CA", ca)];
    let output = run(&["app", "list"], &env).await;
    if output.status.success() { String::new() } else { String::from_utf8_lossy(&output.stderr).into_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_verifies_the_names_and_certificates_of_its_stores() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (ca, cert, key) = (authority.text("ca.pem"), authority.text("cert.pem"), authority.text("key.pem"));
    let port = free_port().to_string();
    let _redis = Redis::start_with(&[
        ("tls-port", &port),
        ("tls-cert-file", &cert),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &ca),
        ("tls-auth-clients", "no"),
    ])
    .await;
    give_to_postgres(&authority.path("key.pem"));
    let ssl = [("ssl", "on"), ("ssl_cert_file", &cert), ("ssl_key_file", &key)];
    let postgres = Postgres::start_with(&ssl).await;
    let postgres_url = |host: &str, ca: &str| {
        format!("postgres://postgres@{host}:{}/postgres?sslmode=verify-full&sslrootcert={ca}", postgres.port())
    };
    let redis_url = |host: &str, ca: &str| format!("rediss://{host}:{port}?ca={ca}");
    let node =
        Node::start(BIN, &["--locks", &postgres_url("localhost", &ca), "--gate", &redis_url("localhost", &ca)]).await;
    granted(&node, "k", json!({})).await;
    begun(&node, json!({ "operation": "charge", "contents": 1 })).await;
    let sessions = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) where a.backend_type = 'client backend' and not ssl and pid <> pg_backend_pid()";
    assert_eq!(postgres.query("postgres", sessions).await.trim(), "0");

    // The certificate is for another name, or of another authority.
    let foreign = other.text("ca.pem");
    for url in [
        postgres_url("127.0.0.1", &ca),
        postgres_url("localhost", &foreign),
        redis_url("127.0.0.1", &ca),
        redis_url("localhost", &foreign),
    ] {
        refused(&["--locks", &url], &["cannot"]).await;
    }
}
