//! Clients of other lock services that speak HTTP: each acquires and releases a lock as one would with curl.

use anyhow::Context;
use latchgate_load::drive::{Laps, Worker};
use latchgate_load::http::{Connection, Failure, KEY, Request, SEQUENCE, Target, post};
use serde::Deserialize;
use serde_json::Value;

fn unreadable(what: &str) -> Failure {
    Failure { what: format!("{what}: an unexpected answer"), outcome_unknown: false }
}

fn key_number(number: usize, sequence: u64, is_fresh: bool) -> u64 {
    (number as u64) << 32 | if is_fresh { sequence } else { 0 }
}

/// etcd's JSON gateway: `/v3/lock/lock` under a lease, and `/v3/lock/unlock`. Each connection has one lease for the whole run, as a
/// session of etcd's own clients has, so that a pair is two calls, the fewest that are possible.
pub struct Etcd {
    connection: Connection,
    target: Target,
    lease: String,
    run: u64,
    number: usize,
    sequence: u64,
    is_fresh: bool,
    /// The requests for a repeated key.
    lock: Option<Vec<u8>>,
}

impl Etcd {
    pub async fn new(
        mut connection: Connection,
        target: &Target,
        run: u64,
        number: usize,
        is_fresh: bool,
    ) -> anyhow::Result<Self> {
        let grant = post(target, "/v3/lease/grant", r#"{"TTL":"600"}"#);
        let body = connection.call("lease", grant.as_bytes()).await.map_err(|failure| anyhow::anyhow!(failure.what))?;
        let lease: Value = serde_json::from_slice(body)?;
        let lease = lease["ID"].as_str().context("the answer has no lease")?.to_owned();
        let target = target.clone();
        Ok(Self { connection, target, lease, run, number, sequence: 0, is_fresh, lock: None })
    }

    fn lock_request(&self) -> Vec<u8> {
        let key = key_number(self.number, self.sequence, self.is_fresh);
        let name = base64(format!("bench-{:016x}-{key:012x}", self.run).as_bytes());
        post(&self.target, "/v3/lock/lock", &format!(r#"{{"name":"{name}","lease":"{}"}}"#, self.lease)).into_bytes()
    }
}

impl Worker for Etcd {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Locked<'a> {
            key: &'a str,
        }
        let lock = match self.lock.take() {
            Some(lock) if !self.is_fresh => lock,
            _ => self.lock_request(),
        };
        let body = self.connection.call("lock", &lock).await?;
        let Locked { key } = serde_json::from_slice(body).map_err(|_| unreadable("lock"))?;
        let unlock = post(&self.target, "/v3/lock/unlock", &format!(r#"{{"key":"{key}"}}"#));
        laps.lap("acquire");
        self.connection.call("unlock", unlock.as_bytes()).await?;
        laps.lap("release");
        self.sequence += 1;
        self.lock = Some(lock);
        Ok(())
    }
}

/// The commands of the usual lock on Redis, over webdis: `SET key id NX PX`, and a script that deletes the key if it has the id.
pub struct Webdis {
    connection: Connection,
    set: Request,
    delete: Request,
    number: usize,
    sequence: u64,
    is_fresh: bool,
}

/// `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`, percent-encoded.
const DELETE_IF_EQUAL: &str = "if%20redis.call(%22get%22%2CKEYS%5B1%5D)%3D%3DARGV%5B1%5D%20then%20return%20redis.call(%22del%22%2C\
    KEYS%5B1%5D)%20else%20return%200%20end";

impl Webdis {
    pub fn new(connection: Connection, target: &Target, run: u64, number: usize, is_fresh: bool) -> Self {
        let (key, id) = (format!("bench-{run:016x}-{KEY}"), format!("{number}-{SEQUENCE}"));
        let set = Request::post(target, "/", &format!("SET/{key}/{id}/NX/PX/30000"));
        let delete = Request::post(target, "/", &format!("EVAL/{DELETE_IF_EQUAL}/1/{key}/{id}"));
        Self { connection, set, delete, number, sequence: 0, is_fresh }
    }
}

impl Worker for Webdis {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let key = key_number(self.number, self.sequence, self.is_fresh);
        let body = self.connection.call("set", self.set.with(self.sequence, key)).await?;
        if body != br#"{"SET":[true,"OK"]}"# {
            return Err(unreadable("set"));
        }
        laps.lap("acquire");
        let body = self.connection.call("delete", self.delete.with(self.sequence, key)).await?;
        if body != br#"{"EVAL":1}"# {
            return Err(unreadable("delete"));
        }
        laps.lap("release");
        self.sequence += 1;
        Ok(())
    }
}

/// octostore's `/locks/NAME/acquire` and `/locks/NAME/release`.
pub struct Octostore {
    connection: Connection,
    target: Target,
    acquire: Request,
    run: u64,
    number: usize,
    sequence: u64,
    is_fresh: bool,
}

impl Octostore {
    pub fn new(connection: Connection, target: &Target, run: u64, number: usize, is_fresh: bool) -> Self {
        let path = format!("/locks/bench-{run:016x}-{KEY}/acquire");
        let acquire = Request::post(target, &path, r#"{"ttl_seconds":30}"#);
        Self { connection, target: target.clone(), acquire, run, number, sequence: 0, is_fresh }
    }
}

impl Worker for Octostore {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Acquired<'a> {
            lease_id: &'a str,
        }
        let key = key_number(self.number, self.sequence, self.is_fresh);
        let body = self.connection.call("acquire", self.acquire.with(0, key)).await?;
        let Acquired { lease_id } = serde_json::from_slice(body).map_err(|_| unreadable("acquire"))?;
        let path = format!("/locks/bench-{:016x}-{key:012x}/release", self.run);
        let release = post(&self.target, &path, &format!(r#"{{"lease_id":"{lease_id}"}}"#));
        laps.lap("acquire");
        self.connection.call("release", release.as_bytes()).await?;
        laps.lap("release");
        self.sequence += 1;
        Ok(())
    }
}

/// With padding, as etcd's gateway wants names.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of_group = |group: &[u8]| {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        let digit = |at: usize| if at <= group.len() { DIGITS[(bits >> (18 - 6 * at) & 63) as usize] } else { b'=' };
        [0, 1, 2, 3].map(|at| char::from(digit(at)))
    };
    bytes.chunks(3).flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn names_are_encoded_with_padding() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
