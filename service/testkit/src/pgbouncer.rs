//! PgBouncer in transaction mode: a private one per test, in front of any Postgres on loopback.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::ports::free_port;
use crate::postgres::command_as_postgres;
use crate::process::{Server, find_program, tail};

const READY_WITHIN: Duration = Duration::from_secs(30);
const START_TRIES: usize = 5;

/// A private PgBouncer with four connections for each database and default settings otherwise. It refuses start-up parameters that
/// it does not know.
pub struct PgBouncer {
    port: u16,
    _server: Server,
    _dir: TempDir,
}

impl PgBouncer {
    /// Starts one in front of the Postgres on `port`.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn start(port: u16) -> Self {
        for _ in 0..START_TRIES {
            if let Some(started) = Self::try_start(port, free_port()).await {
                return started;
            }
        }
        panic!("PgBouncer did not start");
    }

    /// The same database through it.
    ///
    /// # Panics
    ///
    /// When `url` names no database.
    pub fn in_front_of(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').expect("a database's URL");
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    async fn try_start(target: u16, port: u16) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("latchgate-pgbouncer-").tempdir().expect("a temporary directory");
        let config = dir.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={target} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 1000\nserver_idle_timeout = 5\nserver_login_retry = 1\n"
        );
        fs::write(&config, text).expect("the directory is ours");
        let mut pgbouncer = command_as_postgres(find_program("pgbouncer", &[PathBuf::from("/usr/sbin")]), dir.path());
        pgbouncer.arg(&config);
        let log = dir.path().join("pgbouncer.log");
        let mut server = Server::spawn(pgbouncer, dir.path(), &log).expect("pgbouncer can be run");
        let answers = || async { TcpStream::connect(("127.0.0.1", port)).await.is_ok() };
        if server.becomes_ready(READY_WITHIN, answers).await {
            return Some(Self { port, _server: server, _dir: dir });
        }
        eprintln!("{}", tail(&log));
        None
    }
}
