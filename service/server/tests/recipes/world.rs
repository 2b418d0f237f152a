//! A node, a directory with the recipes in it, and machines that run them there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::book::scripts;

const PATIENCE: Duration = Duration::from_secs(60);
const BIN: &str = env!("CARGO_BIN_EXE_latchgate");

/// The scripts' commands write what they do to one file, `log`, a line at a time.
pub struct World {
    pub node: Node,
    dir: TempDir,
}

impl World {
    pub async fn new() -> Self {
        Self::with(&[]).await
    }

    /// Starts the node with more arguments.
    pub async fn with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("log"), "").unwrap();
        let world = Self { node: Node::start(BIN, args).await, dir };
        for (name, script) in scripts() {
            world.put(&name, &script);
        }
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a program for the scripts to run.
    pub fn put(&self, name: &str, script: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Creates a file that a command waits for.
    pub fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    pub async fn until_there(&self, name: &str) {
        until(format!("{name} is there"), || std::future::ready(self.path(name).exists())).await;
    }

    pub fn log(&self) -> Vec<String> {
        fs::read_to_string(self.path("log")).unwrap().lines().map(str::to_owned).collect()
    }

    /// The lines of the log that begin with `word`, without it.
    pub fn logged(&self, word: &str) -> Vec<String> {
        self.log().iter().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned)).collect()
    }

    /// Waits until this many lines begin with `word`; returns them without it.
    pub async fn until_logged(&self, word: &str, times: usize) -> Vec<String> {
        until(format!("{word} {times} times"), || std::future::ready(self.logged(word).len() >= times)).await;
        self.logged(word)
    }

    pub async fn until_waiting(&self, key: &str, waiters: u64) {
        until(format!("{waiters} waiters"), async || self.look(key).await["waiters"] == waiters).await;
    }

    pub async fn look(&self, key: &str) -> Value {
        let answer = Client::new().get(self.lock(key)).send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// Takes the lock for a while; returns the token.
    pub async fn hold(&self, key: &str, lease_id: &str, wait_ms: u64) -> u64 {
        let body = json!({ "lease_id": lease_id, "ttl_ms": 300_000, "wait_ms": wait_ms });
        let request = Client::new().post(format!("{}/acquire", self.lock(key))).body(body.to_string());
        let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        answer["token"].as_u64().unwrap()
    }

    pub fn lock(&self, key: &str) -> String {
        format!("{}/v1/locks/{key}", self.node.base_url())
    }

    /// Runs a recipe on a machine of that name; its output goes to the file `{machine}.err`.
    pub fn run(&self, machine: &str, recipe: &str, args: &[&str]) -> Running {
        self.run_with(machine, recipe, args, &[])
    }

    /// Runs it with more environment variables.
    pub fn run_with(&self, machine: &str, recipe: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let errors = fs::File::options().create(true).append(true).open(self.path(&format!("{machine}.err"))).unwrap();
        // Programs in the machine's own directory come first.
        let path = format!("{}:{}", self.path(machine).display(), std::env::var("PATH").unwrap());
        let child = Command::new("bash")
            .arg(self.path(recipe))
            .args(args)
            .env("LATCHGATE_URL", self.node.base_url())
            .env("PATH", path)
            .env("MACHINE", machine)
            .envs(env.iter().copied())
            .current_dir(self.dir.path())
            .stdin(std::process::Stdio::null())
            .stdout(errors.try_clone().unwrap())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
        Running { child, group, errors: self.path(&format!("{machine}.err")) }
    }
}

/// A running script.
pub struct Running {
    child: Child,
    group: Pid,
    errors: PathBuf,
}

impl Running {
    /// Waits for its end; returns its exit code.
    pub async fn code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it does not end: {}", self.errors())).unwrap().code()
    }

    pub async fn succeeds(&mut self) {
        let code = self.code().await;
        assert_eq!(code, Some(0), "{}", self.errors());
    }

    /// Signals the script and its children, as Ctrl-C and systemd do.
    pub fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    pub fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The trap of the script ends its children.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal(Signal::SIGTERM);
        }
    }
}
