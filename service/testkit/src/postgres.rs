//! Postgres: a private server per test, or a fresh database in the shared one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use tokio::sync::OnceCell;

use crate::ask;
use crate::process::{Program, Server, directory, find_program};
use crate::wait::eventually;

/// Names the shared server: the URL of its `postgres` database.
const SHARED_ENV: &str = "LATCHGATE_TEST_POSTGRES";

const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A private Postgres.
///
/// It trusts every client from 127.0.0.1, has the user `postgres`, the C locale, UTF-8, and 200 connections; otherwise the
/// defaults, with `fsync` and `synchronous_commit` on. As root it runs as the system user `postgres`, since Postgres refuses to run as root.
pub type Postgres = Server<PostgresServer>;

/// Its settings, as in postgresql.conf.
pub struct PostgresServer(Vec<(String, String)>);

impl Postgres {
    /// Starts a server with the default settings.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with more settings: `&[("fsync", "off")]`. They win over the defaults.
    pub async fn start_with(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let dir = directory("postgres");
        init(dir.path());
        Self::launch(PostgresServer(settings), dir).await
    }

    /// A streaming standby of this server, reached through `port`: its own, or that of a proxy that can be cut. Returns when
    /// it takes connections.
    ///
    /// # Panics
    ///
    /// When `pg_basebackup` fails, or the standby does not start.
    pub async fn standby(&self, port: u16) -> Self {
        let dir = directory("postgres");
        let mut backup = command_as_postgres(find_program("pg_basebackup", &binaries()), dir.path());
        backup.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--host=127.0.0.1"]);
        backup
            .args(["--username=postgres", &format!("--port={port}"), "-D"])
            .arg(dir.path().join("data"))
            .current_dir(dir.path());
        // Blocking would stop a proxy that runs in this test's thread.
        ask::run(&mut tokio::process::Command::from(backup)).await.expect("a copy of the data");
        Self::launch(PostgresServer(Vec::new()), dir).await
    }

    /// Makes a standby the primary; returns when it is one.
    pub async fn promote(&self) {
        assert_eq!(self.query("postgres", "select pg_promote()").await, "t");
    }

    /// Returns when `standby` has everything that this server has written until now.
    ///
    /// # Panics
    ///
    /// When that takes more than a minute.
    pub async fn caught_up(&self, standby: &Self) {
        let written = self.query("postgres", "select pg_current_wal_flush_lsn()").await;
        let query = format!("select pg_last_wal_replay_lsn() >= '{written}'");
        let is_there = || async { standby.query("postgres", &query).await == "t" };
        assert!(eventually(CAUGHT_UP_WITHIN, is_there).await, "the standby does not follow:\n{}", standby.log());
    }

    /// The result of `statement`, as text.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub async fn query(&self, database: &str, statement: &str) -> String {
        psql(&self.url(database), statement).await
    }

    /// The URL of `database` in this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// Creates a database with a fresh name; returns its URL.
    pub async fn create_database(&self) -> String {
        create_database(&self.url("postgres")).await
    }

    /// Dumps a database and loads the dump into a new one; returns the URL of that.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub async fn restore_beside(&self, url: &str) -> String {
        let restored = self.create_database().await;
        let [dump, load] = ["pg_dump", "psql"].map(|program| find_program(program, &binaries()));
        let command = format!(
            "set -o pipefail; {} --schema=latchgate --dbname='{url}' | {} --no-psqlrc --quiet -v ON_ERROR_STOP=1 --dbname='{restored}'",
            dump.display(),
            load.display()
        );
        ask::output("bash", ["-c", &command]).await.expect("the database is restored");
        restored
    }

    /// Shuts down in order, cutting connections off (`pg_ctl stop -m fast`); returns when it has ended.
    pub async fn stop_fast(&mut self) {
        self.signal(Signal::SIGINT);
        assert!(self.wait_exit(STOP_WITHIN).await.is_some(), "Postgres did not stop within {STOP_WITHIN:?}");
    }

    /// Copies the data directory of a server that was stopped or killed, for [`put_back`](Self::put_back).
    pub fn copy(&mut self) {
        self.replace("copy", "data");
    }

    /// Replaces the data directory of a server that was stopped or killed by the copy, as a snapshot of its disk would.
    pub fn put_back(&mut self) {
        self.replace("data", "copy");
    }

    fn replace(&mut self, directory: &str, by: &str) {
        assert!(self.exited().is_some(), "Postgres still runs");
        let _ = fs::remove_dir_all(self.file(directory));
        copy_directory(&self.file(by), &self.file(directory));
    }
}

impl Program for PostgresServer {
    const NAME: &'static str = "postgres";

    fn command(&self, dir: &Path, port: u16) -> Command {
        let mut postgres = command_as_postgres(find_program("postgres", &binaries()), dir);
        postgres.arg("-D").arg(dir.join("data"));
        let (port, socket) = (port.to_string(), dir.display().to_string());
        let defaults = [
            ("port", port.as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &socket),
            ("max_connections", "200"),
            // In the data directory: a killed server would leave its segments in /dev/shm.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let extra = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.into_iter().chain(extra) {
            postgres.arg("-c").arg(format!("{name}={value}"));
        }
        postgres
    }

    /// The lock file has the process id in line 1 and the state in line 8. Unlike a connection, it cannot belong to another server
    /// on the port; and the process id distinguishes it from the file of a killed server.
    async fn is_ready(postgres: &Postgres) -> bool {
        let text = fs::read_to_string(postgres.file("data/postmaster.pid")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.first() == Some(&&*postgres.id().to_string()) && lines.get(7) == Some(&"ready")
    }

    /// Its segment of System V's shared memory, of which a system has 4 096: line 7 of the lock file ends with its id.
    fn clear(dir: &Path) {
        let text = fs::read_to_string(dir.join("data/postmaster.pid")).unwrap_or_default();
        if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
    }
}

/// A fresh database in the server that `make test` has started; returns its URL. It is dropped when a later test binary asks for
/// its first one, so that the disk holds those of one binary at a time.
///
/// # Panics
///
/// When `LATCHGATE_TEST_POSTGRES` is not set, or the server does not answer.
pub async fn shared_database() -> String {
    let Ok(server) = std::env::var(SHARED_ENV) else {
        panic!("{SHARED_ENV} is not set: run the tests with `make test`, which starts the servers they need");
    };
    static DROPPED: OnceCell<()> = OnceCell::const_new();
    DROPPED.get_or_init(|| drop_left_databases(&server)).await;
    create_database(&server).await
}

/// Drops the databases of test processes that have ended.
async fn drop_left_databases(server: &str) {
    let names = psql(server, r"select datname from pg_database where datname ~ '^test_[0-9]+_[0-9]+$'").await;
    for name in names.lines() {
        let process = name.split('_').nth(1).unwrap_or_default();
        if !Path::new("/proc").join(process).exists() {
            psql(server, &format!("drop database if exists {name} with (force)")).await;
        }
    }
}

/// With a name that is unique in a server that several test binaries share.
async fn create_database(server: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    psql(server, &format!("create database {name}")).await;
    let (server, _) = server.rsplit_once('/').expect("a database's URL");
    format!("{server}/{name}")
}

async fn psql(url: &str, statement: &str) -> String {
    let mut psql = tokio::process::Command::new(find_program("psql", &binaries()));
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--dbname", url, "--command", statement]);
    ask::run(&mut psql).await.unwrap_or_else(|error| panic!("{error:#}"))
}

/// As root, gives a file to the system user `postgres`, so that servers of this module can read it.
pub fn give_to_postgres(path: &Path) {
    drop(command_as_postgres(PathBuf::new(), path));
}

/// Names a directory with a new server's data, which is copied: initdb takes a second. So all servers have one system identifier.
const TEMPLATE_ENV: &str = "LATCHGATE_TEST_POSTGRES_TEMPLATE";

/// A new server's data, in `dir`/data.
pub(crate) fn init(dir: &Path) {
    if let Some(template) = std::env::var_os(TEMPLATE_ENV) {
        give_to_postgres(dir);
        return copy_directory(template.as_ref(), &dir.join("data"));
    }
    let mut initdb = command_as_postgres(find_program("initdb", &binaries()), dir);
    // --no-sync concerns only the files of the empty cluster: commits of the test are synced.
    initdb.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--auth=trust", "--username=postgres", "-D"]);
    let output = initdb.arg(dir.join("data")).current_dir(dir).output().expect("initdb can be run");
    assert!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
}

fn copy_directory(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp can be run");
    assert!(copied.success(), "cannot copy {}", from.display());
}

/// As root, runs `program` as the system user `postgres`, because it refuses to run as root, and gives that user `dir`.
pub(crate) fn command_as_postgres(program: PathBuf, dir: &Path) -> Command {
    const USER: &str = "postgres";
    if !Uid::effective().is_root() {
        return Command::new(program);
    }
    let user = User::from_name(USER).ok().flatten();
    let user = user.expect("the system user `postgres` exists; `make test` installs Postgres");
    chown(dir, Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("root may give files away");
    // setpriv becomes the program, so that the child process is the server itself.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program);
    command
}

/// Names the directory of the server's programs, for a version that is not Debian's: `make test-versions`.
const PROGRAMS_ENV: &str = "POSTGRES_PROGRAMS";

/// Debian has the server's programs outside of PATH, in one directory for each version. The newest comes first.
pub(crate) fn binaries() -> Vec<PathBuf> {
    if let Some(programs) = std::env::var_os(PROGRAMS_ENV) {
        return vec![PathBuf::from(programs)];
    }
    let Ok(entries) = fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut versions: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(version_of(path)));
    versions.into_iter().map(|path| path.join("bin")).collect()
}

fn version_of(path: &Path) -> u32 {
    path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}
