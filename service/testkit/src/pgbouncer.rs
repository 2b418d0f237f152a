//! PgBouncer in transaction mode: a private one per test, in front of any Postgres on loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::net::TcpStream;

use crate::postgres::command_as_postgres;
use crate::process::{Program, Server, directory, find_program};

/// A private PgBouncer with four connections for each database and default settings otherwise. It refuses start-up parameters that
/// it does not know.
pub type PgBouncer = Server<PgBouncerServer>;

pub struct PgBouncerServer {
    /// The port of Postgres.
    target: u16,
}

impl PgBouncer {
    /// Starts one in front of the Postgres on `port`.
    pub async fn start(port: u16) -> Self {
        Self::launch(PgBouncerServer { target: port }, directory("pgbouncer")).await
    }

    /// The same database through it.
    ///
    /// # Panics
    ///
    /// When `url` names no database.
    pub fn in_front_of(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').expect("a database's URL");
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port())
    }
}

impl Program for PgBouncerServer {
    const NAME: &'static str = "pgbouncer";

    fn command(&self, dir: &Path, port: u16) -> Command {
        let config = dir.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 1000\nserver_idle_timeout = 5\nserver_login_retry = 1\n",
            self.target
        );
        fs::write(&config, text).expect("the directory is ours");
        let mut pgbouncer = command_as_postgres(find_program("pgbouncer", &[PathBuf::from("/usr/sbin")]), dir);
        pgbouncer.arg(&config);
        pgbouncer
    }

    async fn is_ready(pgbouncer: &PgBouncer) -> bool {
        TcpStream::connect(("127.0.0.1", pgbouncer.port())).await.is_ok()
    }
}
