//! Workers that acquire and release one lock at a time.

use std::sync::Arc;

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, KEY, LeaseIds, Request, Target, is_decided};

/// Which key the next operation is about.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Each worker has so many of its own, which it uses in turn.
    Own(u64),
    /// A new one each time.
    Fresh,
    /// So many for all, each as often as its rank says: the first most often.
    Ranked(Arc<Ranks>),
}

impl Keys {
    fn number(&self, worker: usize, sequence: u64) -> u64 {
        match self {
            Self::Own(count) => ((worker as u64) << 32) | (sequence % count),
            Self::Fresh => (worker as u64) << 32 | sequence,
            Self::Ranked(ranks) => ranks.random(),
        }
    }
}

/// Zipf's distribution: the key of rank `r` is used in proportion to `1 / r^skew`. With a skew of 0, all are used equally often.
#[derive(Debug)]
pub struct Ranks {
    /// For each rank the share of it and of all before it.
    shares: Vec<f64>,
}

impl Ranks {
    pub fn new(keys: u64, skew: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys.max(1)).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        let mut shares: Vec<f64> = weights.collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self { shares }
    }

    /// From 0.
    pub fn random(&self) -> u64 {
        let at: f64 = rand::random();
        self.shares.partition_point(|share| *share < at).min(self.shares.len() - 1) as u64
    }
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Exclusive,
    Shared,
    Permits { limit: u32 },
}

impl Mode {
    fn fields(self) -> String {
        match self {
            Self::Exclusive => String::new(),
            Self::Shared => r#","mode":"shared""#.to_owned(),
            Self::Permits { limit } => format!(r#","mode":"permits","permits":1,"limit":{limit}"#),
        }
    }
}

/// What workers do, apart from their connections.
#[derive(Clone, Debug)]
pub struct Locking {
    /// The locks are called so, with the key's number behind.
    pub prefix: String,
    pub keys: Keys,
    pub mode: Mode,
    /// Instead of `mode`, for this share of the operations.
    pub other: Option<(Mode, f64)>,
    /// 0 where no other worker uses the same key.
    pub wait_ms: u64,
}

/// Acquires and releases.
pub struct Locker {
    connection: Connection,
    acquire: Request,
    other: Option<(Request, f64)>,
    release: Request,
    keys: Keys,
    number: usize,
    sequence: u64,
    /// The key of this sequence number, and whether the other mode is used: a repeated request must be the same.
    chosen: Option<(u64, bool)>,
}

impl Locker {
    pub async fn open(target: &Target, run: u64, number: usize, locking: &Locking) -> anyhow::Result<Self> {
        let path = format!("/v1/locks/{}{KEY}", locking.prefix);
        let id = LeaseIds::new(run, number).template();
        let wait = if locking.wait_ms > 0 { format!(r#","wait_ms":{}"#, locking.wait_ms) } else { String::new() };
        let acquire = |mode: Mode| {
            let fields = mode.fields();
            let body = format!(r#"{{"lease_id":"{id}","owner":"bench-{number}","ttl_ms":30000{wait}{fields}}}"#);
            Request::post(target, &format!("{path}/acquire"), &body)
        };
        Ok(Self {
            connection: Connection::open(target).await?,
            acquire: acquire(locking.mode),
            other: locking.other.map(|(mode, share)| (acquire(mode), share)),
            release: Request::post(target, &format!("{path}/release"), &format!(r#"{{"lease_id":"{id}"}}"#)),
            keys: locking.keys.clone(),
            number,
            sequence: 0,
            chosen: None,
        })
    }

    async fn pair(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let is_other = || self.other.as_ref().is_some_and(|(_, share)| rand::random::<f64>() < *share);
        let choose = || (self.keys.number(self.number, self.sequence), is_other());
        let (key, is_other) = *self.chosen.get_or_insert_with(choose);
        let acquire = match &mut self.other {
            Some((other, _)) if is_other => other,
            _ => &mut self.acquire,
        };
        self.connection.call("acquire", acquire.with(self.sequence, key)).await?;
        laps.lap("acquire");
        // After an unknown outcome the pair is repeated: the acquire gets its lease again, or `lease-lost`.
        self.connection.call("release", self.release.with(self.sequence, key)).await?;
        laps.lap("release");
        Ok(())
    }
}

impl Worker for Locker {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let done = self.pair(laps).await;
        if is_decided(&done) {
            self.sequence += 1;
            self.chosen = None;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_is_used_most_often() {
        let ranks = Ranks::new(100, 1.0);
        let firsts = (0..10_000).filter(|_| ranks.random() == 0).count();
        // 1 of 5.19 on average.
        assert!((1_500..2_400).contains(&firsts), "{firsts}");
        assert!((0..1_000).all(|_| ranks.random() < 100));
    }
}
