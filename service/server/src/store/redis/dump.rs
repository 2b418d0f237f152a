//! Walks over all states, to copy them. Where one server has everything, along the index.
//!
//! In a cluster the masters are scanned, one after the other. A scan finds what is there all the while only for as long as its
//! server runs, and a key that goes to another master may come behind where the walk is. So each page looks whether any
//! master was restarted and any slot has moved since the walk began: if so, it begins anew.

use std::hash::{DefaultHasher, Hash, Hasher};

use futures::future::try_join_all;
use latchgate_core::Address;

use super::Shared;
use super::cluster::Cluster;
use super::layout::{decode, indexed, read_indexed};
use super::link::Link;
use super::listing::{along_index, scan_step};
use super::scripts::read;
use super::servers::Servers;
use super::slot::SLOTS;
use crate::store::dump::{no_place, place_after, read_place};
use crate::store::{DumpPage, StoreError, Stored};

/// Where a walk over a cluster is: what the masters were when it began, at which it is, and Redis's own position there.
type Walk = (u64, usize, u64);

pub(super) async fn dump(shared: &Shared, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
    match &shared.servers {
        Servers::One(_) => dump_indexed(shared, from, limit).await,
        Servers::Cluster(cluster) => dump_scanned(shared, cluster, from, limit).await,
    }
}

/// Every state has an entry in the index for as long as it is there.
async fn dump_indexed(shared: &Shared, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
    let from = read_place(from)?.map_or_else(|| "-".to_owned(), |after| format!("({}", indexed(&after)));
    let found = along_index(shared, &from, "+", limit).await?;
    let addresses = found.iter().map(|text| read_indexed(text).ok_or_else(foreign)).collect::<Result<Vec<_>, _>>()?;
    let next = addresses.last().filter(|_| found.len() >= limit).map(place_after);
    Ok((states(shared, addresses).await?, next))
}

async fn dump_scanned(
    shared: &Shared,
    cluster: &Cluster,
    from: Option<&str>,
    limit: usize,
) -> Result<DumpPage, StoreError> {
    let walk: Option<Walk> = from.map(serde_json::from_str).transpose().map_err(|_| no_place())?;
    if walk.is_none() {
        // An old map would be noticed below, but the walk would be refused for it.
        cluster.distrust();
    }
    let masters = cluster.masters().await.map_err(|failed| failed.of_read())?;
    let (began, number, position) = match walk {
        Some(walk) => walk,
        None => (mark_of(cluster, &masters).await?, 0, 0),
    };
    let Some(master) = masters.get(number) else {
        return Ok((Vec::new(), Some(place((mark_of(cluster, &masters).await?, 0, 0)))));
    };
    let found = cluster.heed(master.send(&scan_step(shared, position, limit)).await);
    let (next, found): (u64, Vec<String>) =
        read(found.map_err(|failed| failed.of_read())?).map_err(StoreError::of_reading)?;
    let addresses = found.iter().map(|key| shared.layout.address_of(key).ok_or_else(foreign));
    let states = states(shared, addresses.collect::<Result<_, _>>()?).await?;
    // Afterwards: what goes before this has been found, or shows.
    let mark = mark_of(cluster, &masters).await?;
    let walk = match next {
        _ if mark != began => Some((mark, 0, 0)),
        0 => Some((began, number + 1, 0)).filter(|_| number + 1 < masters.len()),
        _ => Some((began, number, next)),
    };
    Ok((states, walk.map(place)))
}

fn place(walk: Walk) -> String {
    serde_json::json!(walk).to_string()
}

/// A number for which server runs where and has which slots, by what each says of itself: of a slot that goes, the master that
/// gives it up knows from before the first key goes until after the last has gone.
///
/// # Errors
/// While a slot is on its way, if these are not all masters, or if one is cut off from the others: it may have been replaced.
async fn mark_of(cluster: &Cluster, masters: &[Link]) -> Result<u64, StoreError> {
    let mut ask = redis::pipe();
    ask.cmd("INFO").arg("server").cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("NODES");
    let told = try_join_all(masters.iter().map(|master| master.send_all::<(String, String, String)>(&ask))).await;
    let told = cluster.heed(told).map_err(|failed| failed.of_read())?;
    let mut hasher = DefaultHasher::new();
    let mut slots = 0;
    for (server, info, nodes) in &told {
        let Some(own) = Own::read(nodes).filter(|_| info.contains("cluster_state:ok")) else {
            cluster.distrust();
            return Err(StoreError::Unavailable("a master is cut off from the cluster".to_owned()));
        };
        if own.moves {
            return Err(StoreError::Contended("a slot of the cluster is on its way to another master"));
        }
        server.lines().find(|line| line.starts_with("run_id:")).hash(&mut hasher);
        own.hash(&mut hasher);
        slots += own.slots;
    }
    if slots != u32::from(SLOTS) {
        cluster.distrust();
        return Err(StoreError::Unavailable("not every slot of the cluster has a master that is known".to_owned()));
    }
    Ok(hasher.finish())
}

/// What a master says of itself.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Own<'a> {
    id: &'a str,
    /// Counted up when a slot comes to it.
    epoch: &'a str,
    ranges: Vec<&'a str>,
    /// How many slots these are.
    slots: u32,
    /// A slot comes or goes.
    moves: bool,
}

impl<'a> Own<'a> {
    /// From the answer to `CLUSTER NODES`.
    fn read(nodes: &'a str) -> Option<Self> {
        let is_own =
            |fields: &Vec<&str>| fields.get(2).is_some_and(|flags| flags.split(',').any(|flag| flag == "myself"));
        let fields: Vec<&str> = nodes.lines().map(|line| line.split(' ').collect()).find(is_own)?;
        let (moving, ranges): (Vec<&str>, Vec<&str>) =
            fields.get(8..).unwrap_or_default().iter().partition(|range| range.starts_with('['));
        let mut slots = 0;
        for range in &ranges {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            slots += last.parse::<u32>().ok()? + 1 - first.parse::<u32>().ok()?;
        }
        Some(Self { id: fields.first()?, epoch: fields.get(6)?, ranges, slots, moves: !moving.is_empty() })
    }
}

/// Of those that are there.
async fn states(shared: &Shared, addresses: Vec<Address>) -> Result<Vec<(Address, Stored)>, StoreError> {
    let values = shared.values(&addresses).await?;
    let there = addresses.into_iter().zip(values).filter(|(_, value)| value.is_some());
    there.map(|(address, value)| Ok((address, decode(value.as_deref())?))).collect()
}

/// To leave it out would be to lose a state.
fn foreign() -> StoreError {
    StoreError::Unavailable("a key of the locks has no name that this program gives".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_tells_which_slots_it_has_and_whether_one_moves() {
        let nodes = "a1 127.0.0.1:7001@17001 master - 0 1 2 connected 5461-10922\n\
                     b2 127.0.0.1:7000@17000,host myself,master - 0 0 7 connected 0-5460 10923 [77->-a1]\n";
        let own = Own::read(nodes).unwrap();
        assert_eq!(own, Own { id: "b2", epoch: "7", ranges: vec!["0-5460", "10923"], slots: 5_462, moves: true });
        let replica = "c3 127.0.0.1:7002@17002 myself,slave a1 0 0 2 connected\n";
        assert_eq!(Own::read(replica).unwrap().slots, 0);
        assert_eq!(Own::read("a1 127.0.0.1:7001@17001 master - 0 1 2 connected 5461-10922\n"), None);
    }
}
