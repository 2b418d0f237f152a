//! Postgres, Redis, nodes and nginx as parts. Their settings are those of docker-compose.yml: scripts/check-deploy.py compares them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use tokio::process::Command;

use super::ask::{self, is_ok};
use super::parts::{Parts, Spec};
use crate::postgres::{binaries, command_as_postgres};
use crate::process::find_program;

pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
pub const REDIS_OPTIONS: [&str; 6] =
    ["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"];
const NGINX_CONF: &str = include_str!("../../../../deploy/nginx.conf");

/// Where a program of Postgres is.
pub fn postgres_program(name: &str) -> PathBuf {
    find_program(name, &binaries())
}

/// A program that Debian has outside of some users' PATH.
pub fn system_program(name: &str) -> PathBuf {
    find_program(name, &["/usr/sbin".into()])
}

/// The result of a statement. Also in a server that is read-only.
pub async fn query(url: &str, statement: &str) -> anyhow::Result<String> {
    let mut psql = Command::new(postgres_program("psql"));
    psql.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", url, "-c", statement]);
    psql.env("PGOPTIONS", "-c client_min_messages=error -c default_transaction_read_only=off")
        .env("PGCONNECT_TIMEOUT", "2");
    ask::run(&mut psql).await
}

pub async fn redis(port: u16, command: &[&str]) -> anyhow::Result<String> {
    let port = port.to_string();
    ask::output("redis-cli", ["-p", &port].iter().chain(command)).await
}

/// A template with each `${NAME}` replaced by its value.
pub fn render(template: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
}

impl Parts {
    /// Postgres with its own settings for what is on disk, in `data`/postgres. `with` adds what comes before the command.
    pub async fn start_postgres(&self, data: &Path, with: impl Fn(Spec) -> Spec) -> anyhow::Result<()> {
        let dir = data.join("postgres");
        if !dir.exists() {
            fs::create_dir(&dir)?;
            let mut initdb = command_as_postgres(postgres_program("initdb"), &dir);
            initdb.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--auth=trust", "--username=postgres", "-D"]);
            let output = initdb.arg(dir.join("data")).current_dir(&dir).output().context("initdb")?;
            if !output.status.success() {
                bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        let spec = |port: u16| {
            let settings = [
                "listen_addresses=127.0.0.1".to_owned(),
                format!("unix_socket_directories={}", dir.display()),
                "max_connections=400".to_owned(),
                "dynamic_shared_memory_type=mmap".to_owned(),
            ];
            let mut args =
                vec!["-D".to_owned(), dir.join("data").display().to_string(), "-p".to_owned(), port.to_string()];
            args.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
            // On SIGTERM, it would wait until all clients have disconnected.
            with(Spec::new(postgres_program("postgres"), args).as_postgres(Signal::SIGINT))
        };
        self.start_until("postgres", spec, async || query(&self.postgres_url(), "select 1").await.is_ok()).await
    }

    pub fn postgres_url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address("postgres"))
    }

    pub async fn start_redis(&self, data: &Path, with: impl Fn(Spec) -> Spec) -> anyhow::Result<()> {
        let dir = data.join("redis");
        fs::create_dir_all(&dir)?;
        let dir = dir.display().to_string();
        let spec = |port: u16| {
            let port = port.to_string();
            let args = ["--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--save", ""];
            with(Spec::new(find_program("redis-server", &[]), args.into_iter().chain(REDIS_OPTIONS)))
        };
        self.start_until("redis", spec, async || self.redis_answers().await).await
    }

    pub async fn redis_answers(&self) -> bool {
        redis(self.port("redis"), &["ping"]).await.is_ok_and(|answer| answer == "PONG")
    }

    pub async fn start_node(&self, name: &str, binary: &Path, with: impl Fn(Spec) -> Spec) -> anyhow::Result<()> {
        let spec = |port: u16| {
            with(Spec::new(binary, ["serve".to_owned(), "--listen".to_owned(), format!("127.0.0.1:{port}")]))
        };
        self.start_until(name, spec, async || is_ok(&self.url(name), "/readyz").await).await
    }

    /// nginx in front of the three nodes. If it runs, it takes the method over.
    pub async fn start_nginx(&self, method: &str) -> anyhow::Result<()> {
        let dir = self.file("nginx").display().to_string();
        fs::create_dir_all(&dir)?;
        let conf = self.file("nginx.conf");
        let args =
            ["-e", "stderr", "-p", &dir, "-c"].map(str::to_owned).into_iter().chain([conf.display().to_string()]);
        let write = || {
            let values = [
                ("BALANCER_LISTEN", self.address("nginx")),
                ("BALANCER_METHOD", method.to_owned()),
                ("BALANCER_NODE_1", self.address(NODES[0])),
                ("BALANCER_NODE_2", self.address(NODES[1])),
                ("BALANCER_NODE_3", self.address(NODES[2])),
            ];
            fs::write(&conf, render(NGINX_CONF, &values))
        };
        let serves = async || is_ok(&self.url("nginx"), "/healthz").await;
        if self.is_running("nginx") {
            write()?;
            // Running requests end at their nodes.
            ask::run(Command::new(system_program("nginx")).args(args).args(["-q", "-s", "reload"])).await?;
            // For a second, nginx may still regard restarted nodes as down.
            return self.until_ready("nginx", serves).await;
        }
        let spec = |_| {
            let _ = write();
            let args = args.clone().chain(["-g".to_owned(), "daemon off;".to_owned()]);
            Spec::new(system_program("nginx"), args)
        };
        self.start_until("nginx", spec, serves).await
    }
}
