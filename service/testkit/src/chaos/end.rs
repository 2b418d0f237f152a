//! What must hold when the load has ended: nothing is left behind, and in a long run nothing has grown.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tokio::time::sleep;

use super::Target;
use crate::tier::Kind;
use crate::tier::ask::get;

const EMPTY_WITHIN: Duration = Duration::from_secs(300);
/// How much a node's memory, and a file of SQLite or the tables, may grow after the first fifth of a long run, in KiB.
const MEMORY_GROWTH_MAX: u64 = 65_536;
const FILE_GROWTH_MAX: u64 = 32_768;
const DESCRIPTORS_GROWTH_MAX: u64 = 64;

impl Target {
    pub async fn until_empty(&self, is_long: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + EMPTY_WITHIN;
        while !self.clocks_jumped.get() {
            let left = self.left_behind(is_long).await?;
            if left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                bail!("this is left behind:\n{}", left.join("\n"));
            }
            self.tier.parts.supervise()?;
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Leases and waiters; in a long run also keys and events. An operation whose client has gone is known for a day.
    async fn left_behind(&self, is_long: bool) -> anyhow::Result<Vec<String>> {
        let (within, mut left) = (Duration::from_secs(5), Vec::new());
        for url in self.tier.urls() {
            let mut paths = vec![("leases", "/v1/locks?held=true&limit=5")];
            if is_long {
                paths.push(("keys", "/v1/locks?limit=5"));
            }
            for (what, path) in paths {
                let reply = get(&url, path, within).await;
                if reply.body["locks"].as_array().is_none_or(|locks| !locks.is_empty()) {
                    left.push(format!("{what} at {url}: {} {}", reply.status, reply.text));
                }
            }
            let metrics = get(&url, "/metrics", within).await.text;
            let waiters = metrics.lines().find(|line| line.starts_with("latchgate_waiters "));
            if waiters != Some("latchgate_waiters 0") {
                left.push(format!("waiters at {url}: {waiters:?}"));
            }
            if get(&url, "/readyz", within).await.status != 200 {
                left.push(format!("{url} is not ready"));
            }
        }
        if !self.tier.stores.is_empty() {
            let open = self
                .tier
                .query("select pid, query from pg_stat_activity where state like 'idle in transaction%'")
                .await?;
            if !open.is_empty() {
                left.push(format!("open transactions: {open}"));
            }
            if is_long && self.tier.kind != Kind::Pair {
                let events = self.tier.query("select count(*) from latchgate.lock_events").await?;
                if events != "0" {
                    left.push(format!("events: {events}"));
                }
            }
        }
        Ok(left)
    }
}

/// Memory, descriptors and files, in KiB or as a count.
pub struct Sizes(BTreeMap<String, u64>);

impl Sizes {
    pub async fn measure(target: &Target) -> anyhow::Result<Self> {
        let (tier, mut sizes) = (&target.tier, BTreeMap::new());
        for node in tier.nodes {
            let Some(pid) = tier.parts.pid(node) else { bail!("{node} does not run") };
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let memory =
                status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
            sizes.insert(format!("rss-{node}"), memory.unwrap_or(0));
            sizes.insert(format!("fds-{node}"), fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64);
        }
        if tier.kind == Kind::Sqlite {
            let files = tier.data.read_dir()?.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
            sizes.insert("file-sqlite".to_owned(), files.sum::<u64>() / 1_024);
        } else {
            let tables = "select sum(pg_total_relation_size(c.oid))::bigint / 1024 from pg_class c
                join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'latchgate' and c.relkind = 'r'";
            sizes.insert("file-postgres".to_owned(), tier.query(tables).await?.parse()?);
        }
        Ok(Self(sizes))
    }

    /// Prints all, and fails if memory or files have grown.
    pub fn compare(&self, last: &Self) -> anyhow::Result<()> {
        let mut has_grown = false;
        for (name, before) in &self.0 {
            let now = last.0.get(name).copied().unwrap_or(0);
            println!("{name:<16} {before:>10} -> {now}");
            has_grown |= match &name[..3] {
                "rss" => now > before + MEMORY_GROWTH_MAX,
                "fds" => now > before + DESCRIPTORS_GROWTH_MAX,
                _ => now > 2 * before + FILE_GROWTH_MAX,
            };
        }
        ensure!(!has_grown, "something has grown, see above (KiB, and descriptors)");
        Ok(())
    }
}
