//! CPU time, memory and disk writes of local processes, by `/proc`. CPU time is hardly touched by other load on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// The processes whose CPU time counts, each with all of its descendants: those of Postgres are many.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub node: Vec<u32>,
    pub store: Vec<u32>,
}

/// A store that writes less than this in a second has written what it put off, in bytes.
const CALM_BYTES: u64 = 1 << 20;
const CALM_SECONDS: u32 = 3;
/// Postgres spreads the writes of a checkpoint over up to five minutes.
const CALM_MAX: Duration = Duration::from_secs(330);

/// CPU time of a measurement, in µs; `None` if no process is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub node_us: Option<f64>,
    pub store_us: Option<f64>,
}

impl Watched {
    /// The processes behind a port of this machine: the one that listens there, and those of its stores, to which it is connected.
    pub fn behind(port: u16) -> Self {
        let sockets = Sockets::read();
        let Some(node) = sockets.listener(port) else { return Self::default() };
        let store: BTreeSet<u32> = sockets.servers_of(node).into_iter().filter(|pid| *pid != node).collect();
        Self { node: vec![node], store: store.into_iter().collect() }
    }

    /// The CPU time between the two moments.
    pub fn over(&self, from: Instant, until: Instant) -> JoinHandle<Usage> {
        let watched = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(from.into()).await;
            let before = (cpu_us(&watched.node), cpu_us(&watched.store));
            tokio::time::sleep_until(until.into()).await;
            let after = (cpu_us(&watched.node), cpu_us(&watched.store));
            let between = |before: Option<f64>, after: Option<f64>| Some((after? - before?).max(0.0));
            Usage { node_us: between(before.0, after.0), store_us: between(before.1, after.1) }
        })
    }

    /// Returns when the store has written to its disk what it put off.
    pub async fn store_is_calm(&self) {
        let until = Instant::now() + CALM_MAX;
        let (mut before, mut calm_seconds) = (written_bytes(&self.store), 0);
        while before > 0 && calm_seconds < CALM_SECONDS && Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = written_bytes(&self.store);
            // It falls when a process ends.
            calm_seconds = if after.abs_diff(before) < CALM_BYTES { calm_seconds + 1 } else { 0 };
            before = after;
        }
    }

    /// Memory of the node that is in use, in KiB.
    pub fn node_memory_kib(&self) -> Option<u64> {
        let of = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok())
        };
        self.node.iter().map(of).sum::<Option<u64>>().filter(|kib| *kib > 0)
    }
}

/// The bytes that these processes and their descendants have written to disks so far; 0 if that cannot be read.
fn written_bytes(pids: &[u32]) -> u64 {
    let of = |pid: u32| {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        io.lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse::<u64>().ok())
    };
    with_descendants(pids).into_iter().filter_map(of).sum()
}

/// The CPU time so far of these processes and their descendants; `None` if there are none.
pub fn cpu_us(pids: &[u32]) -> Option<f64> {
    if pids.is_empty() {
        return None;
    }
    let nanos: f64 = with_descendants(pids).into_iter().filter_map(nanos_of).sum();
    (nanos > 0.0).then_some(nanos / 1e3)
}

fn nanos_of(pid: u32) -> Option<f64> {
    // A thread may have ended meanwhile.
    let of = |thread: fs::DirEntry| {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse::<f64>().ok()
    };
    Some(fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().filter_map(of).sum::<f64>())
}

fn with_descendants(pids: &[u32]) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in all_pids() {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut open) = (BTreeSet::new(), pids.to_vec());
    while let Some(pid) = open.pop() {
        if found.insert(pid) {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command's name, which may have spaces and brackets in it.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn all_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The TCP sockets of this machine and their processes.
struct Sockets {
    rows: Vec<Row>,
    /// The lowest process that has the socket: a server's first, not its workers.
    owners: BTreeMap<u64, u32>,
}

struct Row {
    local: u16,
    remote: u16,
    is_loopback: bool,
    is_listening: bool,
    inode: u64,
}

impl Sockets {
    fn read() -> Self {
        let text =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        let rows = text.lines().filter_map(Row::parse).collect();
        let mut owners = BTreeMap::new();
        let mut pids = all_pids();
        pids.sort_unstable();
        for pid in pids {
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                let link = fs::read_link(entry.path()).unwrap_or_default();
                let inode =
                    link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
                if let Some(inode) = inode {
                    owners.entry(inode).or_insert(pid);
                }
            }
        }
        Self { rows, owners }
    }

    fn listener(&self, port: u16) -> Option<u32> {
        let listening = self.rows.iter().filter(|row| row.is_listening && row.local == port);
        listening.filter_map(|row| self.owners.get(&row.inode).copied()).min()
    }

    /// The local processes to which `pid` has connected.
    fn servers_of(&self, pid: u32) -> Vec<u32> {
        let own = |row: &&Row| !row.is_listening && row.is_loopback && self.owners.get(&row.inode) == Some(&pid);
        let ports: BTreeSet<u16> = self.rows.iter().filter(own).map(|row| row.remote).collect();
        ports.into_iter().filter_map(|port| self.listener(port)).collect()
    }
}

impl Row {
    /// A line of `/proc/net/tcp`: `sl local remote st … inode`.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
        let (local, remote) = (port(fields.get(1)?)?, port(fields.get(2)?)?);
        let address = fields[2].split(':').next().unwrap_or_default();
        let is_loopback = address.ends_with("7F") || address == "00000000000000000000000001000000";
        Some(Self {
            local,
            remote,
            is_loopback,
            is_listening: fields.get(3) == Some(&"0A"),
            inode: fields.get(9)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_found_by_the_port_on_which_it_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let watched = Watched::behind(listener.local_addr().unwrap().port());
        assert_eq!(watched.node, [std::process::id()]);
        assert!(cpu_us(&watched.node).unwrap() > 0.0);
        assert!(watched.node_memory_kib().unwrap() > 0);
        assert_eq!(cpu_us(&[]), None);
    }
}
