//! A worker that acquires and releases several locks together.

use std::sync::Arc;

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, LeaseIds, Target, is_decided, post};
use crate::locks::Ranks;

#[derive(Clone, Debug)]
pub struct Multilocking {
    pub prefix: String,
    pub keys: Arc<Ranks>,
    /// How many locks each operation takes.
    pub together: usize,
}

pub struct Multilocker {
    connection: Connection,
    target: Target,
    what: Multilocking,
    ids: LeaseIds,
    sequence: u64,
    chosen: Vec<u64>,
}

impl Multilocker {
    pub async fn open(target: &Target, run: u64, number: usize, what: &Multilocking) -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open(target).await?,
            target: target.clone(),
            what: what.clone(),
            ids: LeaseIds::new(run, number),
            sequence: 0,
            chosen: Vec::new(),
        })
    }

    async fn pair(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        while self.chosen.len() < self.what.together {
            let key = self.what.keys.random();
            if !self.chosen.contains(&key) {
                self.chosen.push(key);
            }
        }
        let id = self.ids.text(self.sequence);
        let names = self.chosen.iter().map(|key| format!(r#"{{"key":"{}{key}"}}"#, self.what.prefix));
        let locks = names.collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"locks":[{locks}],"lease_id":"{id}","ttl_ms":30000,"wait_ms":50000}}"#);
        let acquire = post(&self.target, "/v1/multilocks/acquire", &body);
        self.connection.call("acquire", acquire.as_bytes()).await?;
        laps.lap("acquire");
        let leases =
            self.chosen.iter().map(|key| format!(r#"{{"key":"{}{key}","lease_id":"{id}"}}"#, self.what.prefix));
        let leases = leases.collect::<Vec<_>>().join(",");
        let release = post(&self.target, "/v1/leases/release", &format!(r#"{{"leases":[{leases}]}}"#));
        self.connection.call("release", release.as_bytes()).await?;
        laps.lap("release");
        Ok(())
    }
}

impl Worker for Multilocker {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let done = self.pair(laps).await;
        if is_decided(&done) {
            self.sequence += 1;
            self.chosen.clear();
        }
        done
    }
}
