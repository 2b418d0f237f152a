//! Postgres, Redis, nodes and nginx. Their settings are those of docker-compose.yml: scripts/check-deploy.py compares them.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::ask::{self, is_ok};
use super::parts::Spec;
use super::{NODES, Tier};
use crate::postgres::{binaries, init};
use crate::process::find_program;

const REDIS_OPTIONS: [&str; 6] =
    ["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"];

/// Where a program is. Debian has those of Postgres, nginx and HAProxy outside of PATH.
pub fn program(name: &str) -> PathBuf {
    find_program(name, &[binaries(), vec!["/usr/sbin".into()]].concat())
}

/// The result of a statement. Also in a server that is read-only.
pub async fn query(url: &str, statement: &str) -> anyhow::Result<String> {
    let mut psql = Command::new(program("psql"));
    psql.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", url, "-c", statement]);
    psql.env("PGOPTIONS", "-c client_min_messages=error -c default_transaction_read_only=off");
    ask::run(psql.env("PGCONNECT_TIMEOUT", "2")).await
}

pub async fn redis(port: u16, command: &[&str]) -> anyhow::Result<String> {
    ask::output("redis-cli", ["-p", &port.to_string()].iter().chain(command)).await
}

/// Writes a template to a file, with each `${NAME}` replaced by its value.
pub fn render(path: &Path, template: &str, values: &[(&str, String)]) -> anyhow::Result<String> {
    let replace = |text: String, (name, value): &(&str, String)| text.replace(&format!("${{{name}}}"), value);
    fs::write(path, values.iter().fold(template.to_owned(), replace))?;
    Ok(path.display().to_string())
}

impl Tier {
    pub(super) async fn start_postgres(&self) -> anyhow::Result<()> {
        let dir = self.data.join("postgres");
        fs::create_dir(&dir)?;
        init(&dir);
        let (data, socket) = (dir.join("data").display().to_string(), dir.display().to_string());
        let spec = |port: u16| {
            let (port, socket) = (format!("port={port}"), format!("unix_socket_directories={socket}"));
            let shared = "dynamic_shared_memory_type=mmap";
            let settings = [&port, &socket, "listen_addresses=127.0.0.1", "max_connections=400", shared];
            let args = ["-D", &data].into_iter().chain(settings.into_iter().flat_map(|setting| ["-c", setting]));
            self.with_clock("postgres", Spec::new(program("postgres"), args).as_postgres())
        };
        self.parts.start_until("postgres", spec, async || self.serves("postgres").await).await
    }

    pub(super) async fn start_redis(&self) -> anyhow::Result<()> {
        let dir = self.data.join("redis");
        fs::create_dir(&dir)?;
        let dir = dir.display().to_string();
        let spec = |port: u16| {
            let port = port.to_string();
            let args = ["--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--save", ""];
            self.with_clock("redis", Spec::new("redis-server", args.into_iter().chain(REDIS_OPTIONS)))
        };
        self.parts.start_until("redis", spec, async || self.serves("redis").await).await
    }

    pub(super) async fn start_node(&self, name: &str, settings: &[(&str, String)]) -> anyhow::Result<()> {
        let spec = |port: u16| {
            let node = Spec::new(self.node_binary(name), ["serve", "--listen", &format!("127.0.0.1:{port}")]);
            settings.iter().fold(self.with_clock(name, node), |spec, (name, value)| spec.env(name, value))
        };
        self.parts.start_until(name, spec, async || is_ok(&self.parts.url(name), "/readyz").await).await
    }

    pub(super) async fn start_nginx(&self, method: &str) -> anyhow::Result<()> {
        let parts = &self.parts;
        let (dir, conf) = (parts.file("nginx").display().to_string(), parts.file("nginx.conf"));
        fs::create_dir(&dir)?;
        let spec = |_| {
            let values = [
                ("BALANCER_LISTEN", parts.address("nginx")),
                ("BALANCER_METHOD", method.to_owned()),
                ("BALANCER_NODE_1", parts.address(NODES[0])),
                ("BALANCER_NODE_2", parts.address(NODES[1])),
                ("BALANCER_NODE_3", parts.address(NODES[2])),
            ];
            let conf = render(&conf, include_str!("../../../../deploy/nginx.conf"), &values).unwrap_or_default();
            Spec::new(program("nginx"), ["-e", "stderr", "-p", &dir, "-c", &conf, "-g", "daemon off;"])
        };
        parts.start_until("nginx", spec, async || is_ok(&parts.url("nginx"), "/healthz").await).await
    }
}
