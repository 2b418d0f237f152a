//! Which server this is, and whether it may have forgotten leases.
//!
//! A standby that is promoted writes on a timeline of its own. If it was an asynchronous one, commits that were
//! acknowledged may be missing, and with them leases. So whoever first finds the timeline changed begins a new term, with a
//! hold-off as long as the longest lease: by its end no lease that was lost is live.
//!
//! Every commit names the term that it was judged in, and is made only if the row says the same and names the server that
//! the commit is made on. So it does not matter who has noticed what, and when, nor what stands between node and server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::rows::read_timestamp;
use super::sessions::Session;
use crate::store::{Term, TermId};

/// Fails on a standby. `$known`: whether this Postgres tells such things.
macro_rules! timeline {
    ($known:literal) => {
        concat!("case when ", $known, " then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) else '' end")
    };
}
pub(super) use timeline;

macro_rules! system {
    ($known:literal) => {
        concat!("case when ", $known, " then (select system_identifier from pg_control_system()) else 0 end")
    };
}

macro_rules! now_ms {
    () => {
        "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint"
    };
}

/// Asks for what some kinds of Postgres do not tell.
const ASK: &str = "select pg_current_wal_lsn()";

/// Looks; writes nothing.
const SEE: &str = concat!(
    "select ",
    now_ms!(),
    ", c.term, c.hold_off_until, pg_is_in_recovery(), c.system = ",
    system!("$1"),
    " and c.timeline = ",
    timeline!("$1"),
    " from (select) nothing left join cluster c on true"
);

const FOUND: &str = concat!(
    "insert into cluster (system, timeline, term, hold_off_until, ttl_ms_max) select ",
    system!("$1"),
    ", ",
    timeline!("$1"),
    ", 0, 0, 0 on conflict (one) do nothing"
);

/// The first to come begins the term, and tells so; whoever waited for it finds nothing left to do.
const MOVE: &str = concat!(
    "update cluster set system = ",
    system!("$4"),
    ", timeline = ",
    timeline!("$4"),
    ", term = $1, hold_off_until = case when $2 then hold_off_until
        else greatest(hold_off_until, ",
    now_ms!(),
    " + ttl_ms_max + $3) end
    where (system, timeline) is distinct from (",
    system!("$4"),
    ", ",
    timeline!("$4"),
    ") returning timeline"
);

const EXPECT: &str = "update cluster set ttl_ms_max = $1 where ttl_ms_max < $1";

/// Never shortens a hold-off, but ends it if asked for none.
const HOLD_OFF: &str = concat!(
    "update cluster set system = ",
    system!("$4"),
    ", timeline = ",
    timeline!("$4"),
    ", term = $1, hold_off_until = case when $2 = 0 then 0
        else greatest(hold_off_until, ",
    now_ms!(),
    " + coalesce($2, ttl_ms_max + $3)) end
    returning ",
    now_ms!(),
    ", hold_off_until"
);

/// Another term under the same rule.
const RENUMBER: &str = "update cluster set term = $1";

/// Besides the longest lease: a node's clock may be ahead by the bound, and a lease ends by it late.
const MARGIN_MS: i64 = 2 * CLOCK_BOUND_MS.cast_signed();

/// Tries to read a row that others are changing.
const TRIES: u32 = 5;

/// What this node knows of the row.
pub(super) struct Cluster {
    term: Mutex<Term>,
    /// A standby that is promoted has received everything that was acknowledged.
    trust_promotion: bool,
    knows_timeline: bool,
}

impl Cluster {
    /// # Errors
    /// When the server does not tell its timeline, though fail-overs are to be noticed by it.
    pub(super) async fn open(connection: &mut Session, trust_promotion: bool) -> anyhow::Result<Self> {
        let knows_timeline = knows_timeline(connection).await?;
        ensure!(
            knows_timeline || trust_promotion,
            "this Postgres does not tell its timeline, so a fail-over that loses leases would not be noticed: if none can, \
             as with storage that all servers share, pass --trust-promotion"
        );
        Ok(Self { term: Mutex::default(), trust_promotion, knows_timeline })
    }

    pub(super) fn knows_timeline(&self) -> bool {
        self.knows_timeline
    }

    pub(super) fn term(&self) -> Term {
        *self.lock()
    }

    /// Reads the row, and first makes it true if this is another server than it names. Gives the server's clock.
    pub(super) async fn confirm(&self, connection: &mut Session) -> Result<Timestamp, sqlx::Error> {
        for _ in 0..TRIES {
            let row = connection.query(SEE).bind(self.knows_timeline).fetch_one(&mut **connection).await?;
            let now = read_timestamp(&row, 0)?;
            if row.try_get(3)? {
                return Err(is_standby());
            }
            match row.try_get::<Option<bool>, _>(4)? {
                Some(true) => {
                    self.learn(read_term(&row)?, now);
                    return Ok(now);
                }
                Some(false) => self.begin_term(connection).await?,
                None => {
                    connection.query(FOUND).bind(self.knows_timeline).execute(&mut **connection).await?;
                }
            }
        }
        Err(sqlx::Error::Protocol("the server keeps changing while it is asked which it is".to_owned()))
    }

    async fn begin_term(&self, connection: &mut Session) -> Result<(), sqlx::Error> {
        let begun = connection
            .query(MOVE)
            .bind(TermId::fresh().number().cast_signed())
            .bind(self.trust_promotion)
            .bind(MARGIN_MS)
            .bind(self.knows_timeline)
            .fetch_optional(&mut **connection)
            .await?;
        if let Some(row) = begun {
            let timeline: &str = row.try_get(0)?;
            if self.trust_promotion {
                tracing::warn!(timeline, "this is another Postgres than before: trusted to have every lease");
            } else {
                tracing::warn!(timeline, "this is another Postgres than before: leases may be lost, a hold-off begins");
            }
        }
        Ok(())
    }

    /// Begins another term, with no other hold-off.
    pub(super) async fn renumber(&self, connection: &mut Session) -> Result<(), sqlx::Error> {
        self.confirm(connection).await?;
        connection.query(RENUMBER).bind(TermId::fresh().number().cast_signed()).execute(&mut **connection).await?;
        self.confirm(connection).await?;
        Ok(())
    }

    /// What was read together is believed together. Should an old reading come late, the next commit is refused for it.
    fn learn(&self, term: Term, now: Timestamp) {
        let before = std::mem::replace(&mut *self.lock(), term);
        match term.hold_off(now) {
            Some(until) if before != term => tracing::warn!(
                for_ms = until.ms_since(now),
                "HOLD-OFF: no new grants; leases that are known are renewed and released as ever"
            ),
            None if before.hold_off_until > now => tracing::warn!("the hold-off was ended by hand: grants go on"),
            Some(_) | None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever a standby answers may be out of date.
pub(super) fn is_standby() -> sqlx::Error {
    sqlx::Error::Protocol("this Postgres is a standby".to_owned())
}

/// Remembers the longest lease of any node.
pub(super) async fn expect_leases_of(connection: &mut Session, ttl_ms_max: u64) -> Result<(), sqlx::Error> {
    let ttl_ms_max = i64::try_from(ttl_ms_max).unwrap_or(i64::MAX);
    connection.query(EXPECT).bind(ttl_ms_max).execute(&mut **connection).await?;
    Ok(())
}

/// Begins a hold-off of `for_ms`, or of the longest lease, or ends it with 0. Returns how long it lasts, in ms.
pub(super) async fn hold_off(connection: &mut Session, for_ms: Option<u64>) -> Result<u64, sqlx::Error> {
    let knows_timeline = knows_timeline(connection).await?;
    connection.query(FOUND).bind(knows_timeline).execute(&mut **connection).await?;
    let row = connection
        .query(HOLD_OFF)
        .bind(TermId::fresh().number().cast_signed())
        .bind(for_ms.map(u64::cast_signed))
        .bind(MARGIN_MS)
        .bind(knows_timeline)
        .fetch_one(&mut **connection)
        .await?;
    Ok(read_timestamp(&row, 1)?.ms_since(read_timestamp(&row, 0)?))
}

async fn knows_timeline(connection: &mut Session) -> Result<bool, sqlx::Error> {
    match connection.query(ASK).execute(&mut **connection).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == "0A000") => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_term(row: &PgRow) -> Result<Term, sqlx::Error> {
    let id: i64 = row.try_get(1)?;
    Ok(Term { id: TermId::from_number(id.cast_unsigned()), hold_off_until: read_timestamp(row, 2)? })
}
