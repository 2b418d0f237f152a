//! A worker that claims an operation of the gate and reports its success.

use serde::Deserialize;

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, LeaseIds, Request, SEQUENCE, Target, post};

/// Calls pre and post, with new contents each time.
pub struct Caller {
    connection: Connection,
    target: Target,
    pre: Request,
    sequence: u64,
}

/// The answer to a pre.
#[derive(Deserialize)]
struct Go<'a> {
    id: &'a str,
    stamp: &'a str,
}

impl Caller {
    pub async fn open(target: &Target, run: u64, number: usize, is_durable: bool) -> anyhow::Result<Self> {
        let durability = if is_durable { "durable" } else { "fast" };
        let id = LeaseIds::new(run, number).template();
        let body = format!(
            r#"{{"operation":"bench","contents":"{run:016x}-{number}-{SEQUENCE}","attempt_id":"{id}","durability":"{durability}"}}"#
        );
        Ok(Self {
            connection: Connection::open(target).await?,
            target: target.clone(),
            pre: Request::post(target, "/v1/operations/pre", &body),
            sequence: 0,
        })
    }

    async fn pair(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let answer = self.connection.call("pre", self.pre.with(self.sequence, 0)).await?;
        let request = {
            let unreadable = |error| Failure { what: format!("pre 2xx: {error}"), outcome_unknown: false };
            let Go { id, stamp } = serde_json::from_slice(answer).map_err(unreadable)?;
            // The shortest retention: the records of a bench are not of use afterwards.
            let body = format!(r#"{{"stamp":"{stamp}","outcome":"success","retention_ms":1000}}"#);
            post(&self.target, &format!("/v1/operations/{id}/post"), &body)
        };
        laps.lap("pre");
        self.connection.call("post", request.as_bytes()).await?;
        laps.lap("post");
        Ok(())
    }
}

impl Worker for Caller {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        let done = self.pair(laps).await;
        // After an unknown outcome the pre is repeated with the same attempt id; after a success it would be a duplicate.
        if done.as_ref().err().is_none_or(|failure| !failure.outcome_unknown || !failure.what.starts_with("pre")) {
            self.sequence += 1;
        }
        done
    }
}
