//! The SQL. The clock is `clock_timestamp()` throughout: `now()` stands still from the beginning of a transaction,
//! waits for locks included.

use super::cluster::timeline;
use super::events::position;

/// One row for each address, in the order asked. The lateral subquery with its limit keeps the planner to one probe of
/// the primary key for each, whatever it believes of the table's size.
pub(super) const LOAD: &str = r#"
select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint, l.version, l.state
from unnest($1::text[], $2::text[]) with ordinality as asked (app, key, position)
left join lateral (
    select version, state from locks
    where locks.app = asked.app collate "C" and locks.key = asked.key collate "C"
    limit 1
) l on true
order by asked.position"#;

/// Takes the row locks, in key order: two that lock several keys must not wait for each other.
pub(super) const LOCK: &str = r#"
select 1 from locks
where (app, key) in (select app collate "C", key collate "C" from unnest($1::text[], $2::text[]) as asked (app, key))
order by app, key
for update"#;

/// The conditions on which anything is written at all: the caller's clock is right, and the term in which it has judged is
/// that of this server.
macro_rules! clock {
    () => {
        concat!(
            r#"
with clock as materialized (
    select now, is_term, is_term and abs(now - $8) <= $9 as is_right
    from (
        select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now,
            exists (select from cluster where one and term = $10 and timeline = "#,
            timeline!("$11"),
            r#") as is_term
    ) here
)"#
        )
    };
}

/// The whole batch in one statement: changes the rows whose version is still the expected one, provided that
/// [`clock!`] is right. Answers with the clock, how many rows were written, and which if that is not all.
///
/// A plain update takes half the log records of `on conflict do update`, which locks each row in a step of its own. It
/// needs the nested loop that `sessions::settings` leaves the planner no choice but to take. Rows are taken in the order of
/// the arrays, so that no two batches wait for each other.
macro_rules! changed {
    () => {
        concat!(
            clock!(),
            r#", written as (
    update locks l
    set version = c.version, replaces = c.replaces, keep_until = c.keep_until, notice_at = c.notice_at,
        state = c.state
    from clock, unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
        as c (app, key, version, replaces, keep_until, notice_at, state)
    where clock.is_right
        and l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.replaces
    returning l.app, l.key
)"#
        )
    };
}

/// The same for a batch with new rows in it: first all inserts, then all updates. An insert may have to wait for whoever is
/// making or changing the same row; if it held rows that it has changed meanwhile, two could wait for each other. As it is,
/// who changes rows waits only for others that change rows, in the order of the keys.
macro_rules! changed_with_new {
    () => {
        concat!(
            clock!(),
            r#", change as materialized (
    select c.*
    from clock, unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
        as c (app, key, version, replaces, keep_until, notice_at, state)
    where clock.is_right
), inserted as (
    insert into locks (app, key, version, replaces, keep_until, notice_at, state)
    select app, key, version, replaces, keep_until, notice_at, state from change where replaces = 0
    on conflict (app, key) do nothing
    returning app, key
), updated as (
    update locks l
    set version = c.version, replaces = c.replaces, keep_until = c.keep_until, notice_at = c.notice_at,
        state = c.state
    from change c
    where c.replaces > 0
        and l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.replaces
    returning l.app, l.key
), written as (
    select app, key from inserted union all select app, key from updated
)"#
        )
    };
}

/// The events of the changes that were made, in the order of the arrays. Mostly all were: then there is nothing to look up.
/// The `case` keeps the lookup a hash of what was written; as a join it would be a loop in a loop.
macro_rules! logged {
    () => {
        concat!(
            r#", logged as (
    insert into lock_events (xid, at, app, key, kind, body)
    select "#,
            position!(),
            r#", e.at, e.app, e.key, e.kind, e.body
    from unnest($12::text[], $13::text[], $14::text[], $15::bigint[], $16::text[]) as e (app, key, kind, at, body)
    where case
        when (select count(*) from written) = cardinality($1) then true
        else (e.app collate "C", e.key collate "C") in (select app, key from written)
    end
)"#
        )
    };
}

macro_rules! answered {
    () => {
        r#"
select (select now from clock), (select is_term from clock), count(*),
    case when count(*) < cardinality($1) then array_agg(app) end,
    case when count(*) < cardinality($1) then array_agg(key) end
from written"#
    };
}

pub(super) const COMMIT_CHANGED: &str = concat!(changed!(), answered!());
pub(super) const COMMIT_CHANGED_AND_LOG: &str = concat!(changed!(), logged!(), answered!());
pub(super) const COMMIT_WITH_NEW: &str = concat!(changed_with_new!(), answered!());
pub(super) const COMMIT_WITH_NEW_AND_LOG: &str = concat!(changed_with_new!(), logged!(), answered!());

/// For who holds row locks and makes new rows: whoever is making the same ones may be waiting for those locks.
pub(super) const DO_NOT_WAIT_LONG: &str = "set local lock_timeout = '100ms'";

pub(super) const LIST: &str = r#"
select key, state from locks
where app = $1 and key >= $2 and key > $3 and key < $5
order by key
limit $4"#;

/// A page of the primary key.
pub(super) const DUMP: &str = r#"
select app, key, version, state from locks
where (app, key) > ($1 collate "C", $2 collate "C")
order by app, key
limit $3"#;

/// Walks the primary key a page at a time; the last address seen is where the next page begins.
pub(super) const COLLECT: &str = r#"
with clock as materialized (
    select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now
), page as (
    select app, key, version, notice_at from locks
    where (app, key) > ($1 collate "C", $2 collate "C")
    order by app, key
    limit $3
), removed as (
    delete from locks l using clock, page p
    where l.app = p.app and l.key = p.key and l.version = p.version
        and l.keep_until < clock.now and l.notice_at is null
    returning 1
), due as (
    select array_agg(app) as apps, array_agg(key) as keys from clock, page where notice_at < clock.now
), last as (
    select app, key from page order by app desc, key desc limit 1
)
select (select count(*) from page), (select count(*) from removed), (select app from last), (select key from last),
    (select apps from due), (select keys from due)"#;

/// The first node's secret is everybody's.
pub(super) const KEEP_SECRET: &str =
    "insert into secrets (name, value) values ('cluster', $1) on conflict (name) do nothing";

pub(super) const SECRET: &str = "select value from secrets where name = 'cluster'";
