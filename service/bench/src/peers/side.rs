//! One service to measure.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use latchgate_load::cpu::Watched;
use latchgate_load::drive::{Meter, Worker, drive};
use latchgate_load::http::{Connection, Target, run_id};
use latchgate_load::work::{self, Report, Settings, Workload};

use super::clients::{Etcd, Octostore, Webdis};
use super::curator::Curator;

pub struct Side {
    pub name: String,
    protocol: Protocol,
    watched: Watched,
}

enum Protocol {
    Latchgate(Target),
    Etcd(Target),
    Webdis(Target),
    Octostore(Target),
    Curator(Box<Curator>),
}

/// What one measurement of a side does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub workload: Workload,
    pub connections: usize,
    pub warmup: Duration,
    pub measured: Duration,
    pub polls: usize,
    pub leases: u64,
}

impl Side {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().context("a name, a protocol and a URL are needed");
        let (name, protocol, url) = (word()?.to_owned(), word()?, word()?);
        let (mut watched, mut key) = (Watched::default(), None);
        let mut command = vec![url];
        for word in words {
            let pids = |list: &str| {
                list.split(',').map(|pid| pid.parse::<u32>().context("a pid")).collect::<anyhow::Result<Vec<u32>>>()
            };
            match word.split_once('=') {
                Some(("node", list)) => watched.node = pids(list)?,
                Some(("store", list)) => watched.store = pids(list)?,
                Some(("key", value)) => key = Some(value),
                _ => command.push(word),
            }
        }
        let target = || Target::with_key(url, key);
        let protocol = match protocol {
            "floor" | "latchgate" => Protocol::Latchgate(target()?),
            "etcd" => Protocol::Etcd(target()?),
            "webdis" => Protocol::Webdis(target()?),
            "octostore" => Protocol::Octostore(target()?),
            "curator" => Protocol::Curator(Box::new(Curator::start(&command)?)),
            other => bail!("an unknown protocol: {other}"),
        };
        Ok(Self { name, protocol, watched })
    }

    pub async fn measure(&mut self, load: Load) -> anyhow::Result<Report> {
        let settings = self.settings(load);
        let run = run_id();
        let is_fresh = load.workload == Workload::Fresh;
        match &mut self.protocol {
            Protocol::Latchgate(_) => work::run(load.workload, &settings, &Arc::default()).await,
            Protocol::Curator(curator) => curator.measure(load, &self.watched).await,
            Protocol::Etcd(target) => {
                let open = async |connection, target: &Target, number| {
                    Etcd::new(connection, target, run, number, is_fresh).await
                };
                pairs(&settings, target, open).await
            }
            Protocol::Webdis(target) => {
                let open = async |connection, target: &Target, number| {
                    Ok(Webdis::new(connection, target, run, number, is_fresh))
                };
                pairs(&settings, target, open).await
            }
            Protocol::Octostore(target) => {
                let open = async |connection, target: &Target, number| {
                    Ok(Octostore::new(connection, target, run, number, is_fresh))
                };
                pairs(&settings, target, open).await
            }
        }
        .map(|report| Report { workload: load.workload, ..report })
    }

    fn settings(&self, load: Load) -> Settings {
        let target = match &self.protocol {
            Protocol::Latchgate(target) => vec![target.clone()],
            _ => Vec::new(),
        };
        Settings {
            targets: target,
            connections: load.connections,
            warmup: load.warmup,
            measured: load.measured,
            rate: None,
            keys: 1_000,
            skew: 0.99,
            readers: 90,
            permits: 4,
            together: 4,
            polls: load.polls,
            leases: load.leases,
            every: Duration::from_secs(10),
            watched: self.watched.clone(),
        }
    }
}

async fn pairs<W: Worker>(
    settings: &Settings,
    target: &Target,
    open: impl AsyncFn(Connection, &Target, usize) -> anyhow::Result<W>,
) -> anyhow::Result<Report> {
    let mut workers = Vec::with_capacity(settings.connections);
    for number in 0..settings.connections {
        workers.push(open(Connection::open(target).await?, target, number).await?);
    }
    let measured = drive(workers, &settings.plan(), &Arc::new(Meter::default())).await;
    Ok(Report::of(Workload::Repeated, settings, measured))
}
