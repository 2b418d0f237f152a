//! A Redis Cluster: which master has which slot, as far as this node knows. Masters tell where a slot has gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use super::link::{Failed, Link, Target, server_of};
use super::slot::{SLOTS, slot_of};
use super::url::Login;

/// How often a command follows its slot.
const REDIRECTS_MAX: usize = 5;
/// How long a slot that is being moved is given until it is asked again.
const MOVING_PAUSE: Duration = Duration::from_millis(10);
/// Masters are asked for the slots no more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    seeds: Vec<String>,
    login: Login,
    timeout: Duration,
    map: Mutex<Map>,
    looking: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Map {
    /// `HOST:PORT` of the master of each slot.
    slots: Vec<Option<Arc<str>>>,
    links: HashMap<Arc<str>, Link>,
    /// Something has shown that it is out of date.
    is_stale: bool,
}

impl Cluster {
    pub(super) async fn open(seeds: Vec<String>, login: Login, timeout: Duration) -> anyhow::Result<Self> {
        let map = Mutex::new(Map { is_stale: true, ..Map::default() });
        let cluster = Self { seeds, login, timeout, map, looking: tokio::sync::Mutex::default() };
        let looked = cluster.look().await;
        looked.map_err(|failed| anyhow::anyhow!("cannot ask the Redis Cluster for its slots: {}", failed.error))?;
        Ok(cluster)
    }

    /// Sends to the master of the key's slot. What was carried out, or may have been, is never
    /// sent again: only what a master says it has not even looked at.
    pub(super) async fn send(&self, key: &str, command: &Cmd) -> Result<Value, Failed> {
        if key.is_empty() {
            return self.send_to_any(command).await;
        }
        let mut link = self.link_of(slot_of(key)).await?;
        let mut is_asking = false;
        let mut last = None;
        for _ in 0..REDIRECTS_MAX {
            let answer = if is_asking { asking(&link, command).await } else { link.send(command).await };
            is_asking = false;
            let failed = match self.heed(answer) {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            match (failed.error.code(), failed.error.redirect_node()) {
                (Some("MOVED"), Some((server, slot))) => {
                    let server = self.named(server, &link);
                    link = self.link(&server)?;
                    self.map().set(slot, server);
                }
                (Some("ASK"), Some((server, _))) => {
                    link = self.link(&self.named(server, &link))?;
                    is_asking = true;
                }
                (Some("TRYAGAIN"), _) => tokio::time::sleep(MOVING_PAUSE).await,
                _ => return Err(failed),
            }
            last = Some(failed);
        }
        Err(last.unwrap_or_else(nobody))
    }

    /// For commands that every master answers alike, and that may be sent twice.
    async fn send_to_any(&self, command: &Cmd) -> Result<Value, Failed> {
        let mut last = None;
        for master in self.masters().await? {
            match self.heed(master.send(command).await) {
                Ok(answer) => return Ok(answer),
                Err(failed) => last = Some(failed),
            }
        }
        Err(last.unwrap_or_else(nobody))
    }

    /// A master that answers.
    pub(super) async fn any(&self) -> Result<Link, Failed> {
        let ping = redis::cmd("PING");
        let mut last = None;
        for master in self.masters().await? {
            match self.heed(master.send(&ping).await) {
                Ok(_) => return Ok(master),
                Err(failed) => last = Some(failed),
            }
        }
        Err(last.unwrap_or_else(nobody))
    }

    /// Every master that has slots, always in the same order.
    pub(super) async fn masters(&self) -> Result<Vec<Link>, Failed> {
        self.look_if_stale().await?;
        let servers: Vec<Arc<str>> = {
            let map = self.map();
            let mut servers: Vec<Arc<str>> = map.slots.iter().flatten().cloned().collect();
            // Slots come in ranges.
            servers.dedup();
            servers.sort_unstable();
            servers.dedup();
            servers
        };
        servers.iter().map(|server| self.link(server)).collect()
    }

    async fn link_of(&self, slot: u16) -> Result<Link, Failed> {
        self.look_if_stale().await?;
        let server = self.map().slots.get(usize::from(slot)).cloned().flatten();
        match server {
            Some(server) => self.link(&server),
            None => {
                self.map().is_stale = true;
                Err(Failed::unsent(RedisError::from(std::io::Error::other("no master of the cluster has this slot"))))
            }
        }
    }

    fn link(&self, server: &Arc<str>) -> Result<Link, Failed> {
        let mut map = self.map();
        if let Some(link) = map.links.get(server) {
            return Ok(link.clone());
        }
        let client = self.login.client(server).map_err(Failed::unsent)?;
        let link = Link::new(Target::One(client), self.timeout);
        map.links.insert(Arc::clone(server), link.clone());
        Ok(link)
    }

    /// After a failure that a fail-over may have caused, the slots are asked for again.
    pub(super) fn heed<T>(&self, answer: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(failed) = &answer
            && (failed.error.is_io_error() || matches!(failed.error.code(), Some("READONLY" | "CLUSTERDOWN" | "MOVED")))
        {
            self.map().is_stale = true;
        }
        answer
    }

    /// The slots are asked for again before they are used.
    pub(super) fn distrust(&self) {
        self.map().is_stale = true;
    }

    async fn look_if_stale(&self) -> Result<(), Failed> {
        if self.map().is_stale { self.look().await } else { Ok(()) }
    }

    /// Asks for the slots: any master that is known, then the nodes of the URL. While none answers, what is known is used.
    async fn look(&self) -> Result<(), Failed> {
        let mut looked = self.looking.lock().await;
        if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        let known: Vec<Arc<str>> = self.map().links.keys().cloned().collect();
        let seeds = self.seeds.iter().map(|seed| Arc::from(seed.as_str()));
        let mut last = None;
        for server in known.into_iter().chain(seeds) {
            let link = self.link(&server)?;
            match slots_at(&link, &server).await {
                Ok(slots) => {
                    let mut map = self.map();
                    map.links.retain(|server, _| slots.iter().flatten().any(|master| master == server));
                    map.slots = slots;
                    map.is_stale = false;
                    *looked = Some(Instant::now());
                    return Ok(());
                }
                Err(failed) => last = Some(failed),
            }
        }
        *looked = Some(Instant::now());
        if !self.map().slots.is_empty() {
            return Ok(());
        }
        Err(last.unwrap_or_else(|| Failed::unsent(RedisError::from(std::io::Error::other("no node is named")))))
    }

    /// A server as a redirection names it: without a host, it is that of the one that said so.
    fn named(&self, server: &str, teller: &Link) -> Arc<str> {
        match server.strip_prefix(':') {
            Some(port) => {
                let map = self.map();
                let told = map.links.iter().find(|(_, link)| link.is(teller)).map(|(server, _)| server.clone());
                let host = told.as_deref().and_then(|told| told.rsplit_once(':')).map_or("", |(host, _)| host);
                format!("{host}:{port}").into()
            }
            None => match server.rsplit_once(':') {
                Some((host, port)) => server_of(host, port.parse().unwrap_or_default()).into(),
                None => server.into(),
            },
        }
    }

    fn map(&self) -> std::sync::MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    fn set(&mut self, slot: u16, server: Arc<str>) {
        if let Some(master) = self.slots.get_mut(usize::from(slot)) {
            *master = Some(server);
        }
    }
}

fn nobody() -> Failed {
    Failed::unsent(RedisError::from(std::io::Error::other("no master of the cluster is known")))
}

/// A slot on its way is served by where it goes only to who says so.
async fn asking(link: &Link, command: &Cmd) -> Result<Value, Failed> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    let (answer,): (Value,) = link.send_all(&both).await?;
    Ok(answer)
}

/// The master of each slot, by `CLUSTER SLOTS`.
async fn slots_at(link: &Link, asked: &str) -> Result<Vec<Option<Arc<str>>>, Failed> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let ranges: Vec<Vec<Value>> =
        redis::from_redis_value(link.send(&ask).await?).map_err(|error| Failed::sent(error.into()))?;
    let mut slots = vec![None; usize::from(SLOTS)];
    for range in ranges {
        let mut range = range.into_iter();
        let (first, last, master) = (range.next(), range.next(), range.next());
        let read = |value: Option<Value>| redis::from_redis_value::<usize>(value.unwrap_or_default());
        let (Ok(first), Ok(last)) = (read(first), read(last)) else { continue };
        let Some(Value::Array(master)) = master else { continue };
        let mut master = master.into_iter();
        let host: Option<String> = master.next().and_then(|host| redis::from_redis_value(host).ok()).flatten();
        let Some(port) = master.next().and_then(|port| redis::from_redis_value::<u16>(port).ok()) else { continue };
        // Without an address of its own it is where it was asked.
        let asked_host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let host = host.filter(|host| !host.is_empty());
        let server: Arc<str> = match host {
            Some(host) => server_of(&host, port).into(),
            None => format!("{asked_host}:{port}").into(),
        };
        for slot in slots.iter_mut().take(last + 1).skip(first) {
            *slot = Some(Arc::clone(&server));
        }
    }
    Ok(slots)
}
