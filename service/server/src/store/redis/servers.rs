//! The servers of a URL, and the choice between them.

use std::time::Duration;

use futures::future::join_all;
use redis::{Cmd, ErrorKind, ServerErrorKind, Value};

use super::cluster::Cluster;
use super::link::{Failed, Link, Target};
use super::scripts::Program;
use super::url::Place;

pub(super) enum Servers {
    /// One server has all keys: a single one, or the master of a service of Sentinels.
    One(Link),
    Cluster(Box<Cluster>),
}

impl Servers {
    pub(super) async fn open(place: Place, timeout: Duration) -> anyhow::Result<Self> {
        match place {
            Place::Cluster { seeds, login } => Ok(Self::Cluster(Box::new(Cluster::open(seeds, login, timeout).await?))),
            place => Ok(Self::One(Link::new(Target::of(place)?, timeout))),
        }
    }

    /// The servers that can be written to.
    pub(super) async fn masters(&self) -> Result<Vec<Link>, Failed> {
        match self {
            Self::One(link) => Ok(vec![link.clone()]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Sends a command to the server that has `key`.
    pub(super) async fn send(&self, key: &str, command: &Cmd) -> Result<Value, Failed> {
        match self {
            Self::One(link) => link.send(command).await,
            Self::Cluster(cluster) => cluster.send(key, command).await,
        }
    }

    /// As [`Servers::send`], for commands that only read: if the connection is dead, the command is sent once more.
    pub(super) async fn query(&self, key: &str, command: &Cmd) -> Result<Value, Failed> {
        match self.send(key, command).await {
            Err(failed) if failed.is_dead_connection() => self.send(key, command).await,
            answer => answer,
        }
    }

    /// As [`Servers::query`], for several commands at once, each to the server that has its key.
    pub(super) async fn query_each(&self, commands: &[(String, Cmd)]) -> Result<Vec<Value>, Failed> {
        let answers = join_all(commands.iter().map(|(key, command)| self.query(key, command))).await;
        answers.into_iter().collect()
    }

    /// Sends several commands at once, each to the server that has its key.
    pub(super) async fn send_each(&self, commands: &[(String, Cmd)]) -> Result<Vec<Value>, Failed> {
        let answers = join_all(commands.iter().map(|(key, command)| self.send(key, command))).await;
        answers.into_iter().collect()
    }

    /// Runs a script on the server that has the first of `keys`.
    pub(super) async fn run(&self, program: &Program, keys: &[String], arguments: &[String]) -> Result<Value, Failed> {
        let home = keys.first().map_or("", String::as_str);
        let call = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        match self.send(home, &call("EVALSHA", program.script.get_hash())).await {
            // The server has been restarted and did not run the script. `EVAL` runs and stores it.
            Err(failed) if failed.error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(home, &call("EVAL", program.text)).await
            }
            answer => answer,
        }
    }

    /// A server for publishing and subscribing.
    pub(super) async fn target(&self) -> Result<Target, Failed> {
        match self {
            Self::One(link) => Ok(link.target().clone()),
            Self::Cluster(cluster) => cluster.any().await.map(|link| link.target().clone()),
        }
    }
}
