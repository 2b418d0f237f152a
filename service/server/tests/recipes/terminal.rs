//! A terminal in which the blocks of one page are run, top to bottom, by one shell.
//!
//! Blocks are not changed. Programs in front of `PATH` put the addresses of this world in the place of those that pages use:
//! port 7070 is a free port, `db` a private Postgres, `cache` a private Redis. `latchgate serve` returns when the node is ready, and
//! ends the node that was on the same port. A block with it runs in a shell of its own, as in another terminal: what it exports is
//! not there in later blocks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use latchgate_testkit::free_port;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::redis::Redis;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::Command;

use crate::book::{Block, Page, REPOSITORY, scripts};
use crate::shown::difference;

const PATIENCE: Duration = Duration::from_secs(240);
/// The ports that pages use.
const PORTS: [u16; 4] = [7070, 7071, 7072, 7073];

const PROGRAMS: [(&str, &str); 5] = [
    ("curl", include_str!("programs/curl")),
    ("latchgate", include_str!("programs/latchgate")),
    ("latchgate-bench", include_str!("programs/latchgate-bench")),
    ("cargo", include_str!("programs/cargo")),
    ("make", include_str!("programs/make")),
];

/// Runs the page; returns what did not go as the page says, if anything did not.
pub async fn run(page: &Page) -> Option<String> {
    let blocks: Vec<&Block> = page.blocks.iter().filter(|block| block.fence == "sh").collect();
    if blocks.is_empty() {
        return None;
    }
    let terminal = Terminal::open(&blocks).await;
    let ended = terminal.run_all().await;
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{}:{}", page.name, block.line);
        let Ok(code) = fs::read_to_string(terminal.file(index, "code")) else {
            let (printed, errors) = (terminal.read(index, "out"), terminal.read(index, "err"));
            return Some(format!("{place} failed ({ended})\n{}{printed}\n{errors}", block.text));
        };
        assert_eq!(code, "0\n");
        if let Some(shown) = shown_below(page, block) {
            let printed = terminal.read(index, "out");
            if let Some(difference) = difference(shown, &printed) {
                return Some(format!("{place} prints something else\n{}{difference}", block.text));
            }
        }
    }
    None
}

/// The block that shows what `block` prints.
fn shown_below<'page>(page: &'page Page, block: &Block) -> Option<&'page Block> {
    let next = page.blocks.iter().find(|other| other.line > block.line)?;
    (next.follows_block && ["json", "text"].contains(&next.fence.as_str())).then_some(next)
}

struct Terminal {
    dir: TempDir,
    postgres: Option<Postgres>,
    redis: Option<Redis>,
}

impl Terminal {
    async fn open(blocks: &[&Block]) -> Self {
        let mentions = |word: &str| blocks.iter().any(|block| block.text.contains(word));
        let terminal = Self {
            dir: tempfile::Builder::new().prefix("latchgate-page-").tempdir().unwrap(),
            postgres: if mentions("postgres:") { Some(Postgres::start().await) } else { None },
            redis: if mentions("redis:") { Some(Redis::start().await) } else { None },
        };
        for directory in ["programs", "blocks", "home"] {
            fs::create_dir(terminal.path(directory)).unwrap();
        }
        let programs = PROGRAMS.map(|(name, text)| (name.to_owned(), text.to_owned()));
        for (name, text) in programs.into_iter().chain(scripts()) {
            let path = terminal.path("programs").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut session = String::from("set -eo pipefail\nlatchgate serve\n");
        for (index, block) in blocks.iter().enumerate() {
            fs::write(terminal.file(index, "sh"), &block.text).unwrap();
            let [script, out, err, code] = ["sh", "out", "err", "code"].map(|kind| terminal.file(index, kind));
            let (open, close) = if block.keeps_its_terminal() { ("(", ")") } else { ("", "") };
            session += &format!("{open}. {}{close} >{} 2>{}\n", script.display(), out.display(), err.display());
            session += &format!("echo 0 >{}\n", code.display());
        }
        fs::write(terminal.path("session"), session).unwrap();
        terminal
    }

    /// Returns how it ended.
    async fn run_all(&self) -> String {
        let path = format!("{}:{}", self.path("programs").display(), std::env::var("PATH").unwrap());
        let ports: Vec<String> = PORTS.iter().map(|port| format!("{port}:{}", free_port())).collect();
        let log = fs::File::create(self.path("log")).unwrap();
        let mut bash = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name == "DATABASE_URL" || name.to_string_lossy().starts_with("LATCHGATE_") {
                bash.env_remove(name);
            }
        }
        if let Some(postgres) = &self.postgres {
            let port = postgres.port().to_string();
            bash.envs([("PGHOST", "127.0.0.1"), ("PGPORT", &port), ("PGUSER", "postgres")]);
            bash.env("PAGE_POSTGRES", format!("127.0.0.1:{port}"));
        }
        if let Some(redis) = &self.redis {
            bash.env("PAGE_REDIS", format!("127.0.0.1:{}", redis.port()));
        }
        let mut bash = bash
            .arg(self.path("session"))
            .env("PATH", path)
            .env("PAGE_PROGRAMS", self.path("programs"))
            .env("PAGE_PORTS", ports.join(" "))
            .env("PAGE_TEST", std::process::id().to_string())
            .env("PAGE_LATCHGATE", env!("CARGO_BIN_EXE_latchgate"))
            .env("PAGE_REPOSITORY", REPOSITORY)
            .current_dir(self.path("home"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_raw(i32::try_from(bash.id().unwrap()).unwrap());
        let ended = tokio::time::timeout(PATIENCE, bash.wait()).await;
        // The nodes too, which are in the shell's group.
        let _ = killpg(group, Signal::SIGKILL);
        match ended {
            Ok(status) => format!("{}\n{}", status.unwrap(), fs::read_to_string(self.path("log")).unwrap()),
            Err(_) => format!("not within {PATIENCE:?}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, index: usize, kind: &str) -> PathBuf {
        self.path("blocks").join(format!("{index}.{kind}"))
    }

    fn read(&self, index: usize, kind: &str) -> String {
        fs::read_to_string(self.file(index, kind)).unwrap_or_default()
    }
}
