//! A Redis Cluster: a map from slots to masters. If a slot has moved, the answer of its old master says where.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use super::link::{Failed, Link, Target, server_of};
use super::slot::{SLOTS, slot_of};
use super::url::Login;

/// How many times a command is redirected.
const REDIRECTS_MAX: usize = 5;
/// Pause before a command is repeated while its slot is being moved.
const MOVING_PAUSE: Duration = Duration::from_millis(10);
/// Shortest time between two requests for the map of slots.
const REFRESH_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Cluster {
    seeds: Vec<String>,
    login: Login,
    timeout: Duration,
    map: Mutex<Map>,
    refreshed_at: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Map {
    /// `HOST:PORT` of the master of each slot.
    slots: Vec<Option<Arc<str>>>,
    links: HashMap<Arc<str>, Link>,
    /// A failure has shown that the map may be out of date.
    is_stale: bool,
}

impl Cluster {
    pub(super) async fn open(seeds: Vec<String>, login: Login, timeout: Duration) -> anyhow::Result<Self> {
        let map = Mutex::new(Map { is_stale: true, ..Map::default() });
        let cluster = Self { seeds, login, timeout, map, refreshed_at: tokio::sync::Mutex::default() };
        let refreshed = cluster.refresh().await;
        refreshed.map_err(|failed| anyhow::anyhow!("cannot read the slots of the Redis Cluster: {}", failed.error))?;
        Ok(cluster)
    }

    /// Sends a command to the master of the key's slot. It is sent again only if the answer of a master shows that the command
    /// was not executed.
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
            let failed = match self.note_failure(answer) {
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
        Err(last.unwrap_or_else(no_master))
    }

    /// Sends a command that every master answers alike and that may be sent twice.
    async fn send_to_any(&self, command: &Cmd) -> Result<Value, Failed> {
        let mut last = None;
        for master in self.masters().await? {
            match self.note_failure(master.send(command).await) {
                Ok(answer) => return Ok(answer),
                Err(failed) => last = Some(failed),
            }
        }
        Err(last.unwrap_or_else(no_master))
    }

    /// A master that answers.
    pub(super) async fn any(&self) -> Result<Link, Failed> {
        let ping = redis::cmd("PING");
        let mut last = None;
        for master in self.masters().await? {
            match self.note_failure(master.send(&ping).await) {
                Ok(_) => return Ok(master),
                Err(failed) => last = Some(failed),
            }
        }
        Err(last.unwrap_or_else(no_master))
    }

    /// All masters that have slots, always in the same order.
    pub(super) async fn masters(&self) -> Result<Vec<Link>, Failed> {
        self.refresh_if_stale().await?;
        let servers: Vec<Arc<str>> = {
            let map = self.map();
            let mut servers: Vec<Arc<str>> = map.slots.iter().flatten().cloned().collect();
            // Slots are in ranges, so most repetitions are neighbours.
            servers.dedup();
            servers.sort_unstable();
            servers.dedup();
            servers
        };
        servers.iter().map(|server| self.link(server)).collect()
    }

    async fn link_of(&self, slot: u16) -> Result<Link, Failed> {
        self.refresh_if_stale().await?;
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

    /// Marks the map as stale after a failure that a fail-over may have caused.
    pub(super) fn note_failure<T>(&self, answer: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(failed) = &answer
            && (failed.error.is_io_error() || matches!(failed.error.code(), Some("READONLY" | "CLUSTERDOWN" | "MOVED")))
        {
            self.map().is_stale = true;
        }
        answer
    }

    async fn refresh_if_stale(&self) -> Result<(), Failed> {
        if self.map().is_stale { self.refresh().await } else { Ok(()) }
    }

    /// Reads the map of slots from any known master, or else from the nodes of the URL. If none answers, the old map stays.
    async fn refresh(&self) -> Result<(), Failed> {
        let mut refreshed_at = self.refreshed_at.lock().await;
        if refreshed_at.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
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
                    *refreshed_at = Some(Instant::now());
                    return Ok(());
                }
                Err(failed) => last = Some(failed),
            }
        }
        *refreshed_at = Some(Instant::now());
        if !self.map().slots.is_empty() {
            return Ok(());
        }
        Err(last.unwrap_or_else(|| Failed::unsent(RedisError::from(std::io::Error::other("no node is named")))))
    }

    /// The server of a redirection. If it has no host, it has that of the server that sent the redirection.
    fn named(&self, server: &str, sender: &Link) -> Arc<str> {
        match server.strip_prefix(':') {
            Some(port) => {
                let map = self.map();
                let sender = map.links.iter().find(|(_, link)| link.is(sender)).map(|(server, _)| server.clone());
                let host = sender.as_deref().and_then(|server| server.rsplit_once(':')).map_or("", |(host, _)| host);
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

fn no_master() -> Failed {
    Failed::unsent(RedisError::from(std::io::Error::other("no master of the cluster is known")))
}

/// Sends a command with `ASKING`, without which a server does not answer for a slot that is being moved to it.
async fn asking(link: &Link, command: &Cmd) -> Result<Value, Failed> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    let (answer,): (Value,) = link.send_all(&both).await?;
    Ok(answer)
}

/// The master of each slot, by `CLUSTER SLOTS`.
async fn slots_at(link: &Link, server: &str) -> Result<Vec<Option<Arc<str>>>, Failed> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let ranges: Vec<Vec<Value>> =
        redis::from_redis_value(link.send(&command).await?).map_err(|error| Failed::sent(error.into()))?;
    let own_host = server.rsplit_once(':').map_or(server, |(host, _)| host);
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
        // An answer without a host means the server that has sent it.
        let host = host.filter(|host| !host.is_empty());
        let master: Arc<str> = match host {
            Some(host) => server_of(&host, port).into(),
            None => format!("{own_host}:{port}").into(),
        };
        for slot in slots.iter_mut().take(last + 1).skip(first) {
            *slot = Some(Arc::clone(&master));
        }
    }
    Ok(slots)
}
