//! The SQL. The clock is always `clock_timestamp()`, because `now()` stands still during a transaction, also while it waits
//! for locks.

/// One row for each address, in the order of the request. The lateral subquery with its limit makes the planner use one probe
/// of the primary key for each address. Record and states are from one snapshot, so the record applies to the states.
pub(super) const LOAD: &str = r#"
select now_ms(), here.is_in_force, l.version, l.state
from (
    select exists (
        select from engine_records
        where purpose = 'locks' and state = 'active' and epoch = $3 and split_part(server, '/', 2) = timeline_here($4)
    ) as is_in_force
) here,
unnest($1::text[], $2::text[]) with ordinality as requested (app, key, position)
left join lateral (
    select version, state from locks
    where locks.app = requested.app collate "C" and locks.key = requested.key collate "C"
    limit 1
) l on true
order by requested.position"#;

/// Takes the row locks in key order, so that two transactions cannot deadlock.
pub(super) const LOCK: &str = r#"
select 1 from locks
where (app, key) in (select app collate "C", key collate "C" from unnest($1::text[], $2::text[]) as requested (app, key))
order by app, key
for update"#;

/// See the function.
pub(super) const COMMIT: &str = "
select now, is_in_force, written, apps_written, keys_written
from commit_locks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

/// The clock, and which of the addresses have a row that no other session has locked.
pub(super) const UNLOCKED: &str = r#"
with unlocked as materialized (
    select l.app, l.key
    from unnest($1::text[], $2::text[]) as requested (app, key)
    join locks l on l.app = requested.app collate "C" and l.key = requested.key collate "C"
    for update of l skip locked
)
select now_ms(), array_agg(app), array_agg(key) from unlocked"#;

/// See the function.
pub(super) const PROBE: &str = "select probe_locks($1)";

pub(super) const LIST: &str = r#"
select key, state from locks
where app = $1 and key >= $2 and key > $3 and key < $5
order by key
limit $4"#;

pub(super) const APP_AFTER: &str = "select min(app) from locks where app > $1";

/// A page of all rows, in the order of the primary key.
pub(super) const DUMP: &str = r#"
select app, key, notice_at, keep_until, state from locks
where (app, key) > ($1 collate "C", $2 collate "C")
order by app, key
limit $3"#;

pub(super) const CLEAR: &str = "select clear_locks($1, $2)";

/// Writes copied states, replacing existing ones.
pub(super) const FILL: &str = r#"
with clock as materialized (
    select is_in_force from fence('locks', 'filling', $7, $8)
), filled as (
    insert into locks (app, key, version, replaces, keep_until, notice_at, state)
    select c.app, c.key, c.version, 0, c.keep_until, c.notice_at, c.state
    from clock, unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
        as c (app, key, version, keep_until, notice_at, state)
    where clock.is_in_force
    on conflict (app, key) do update
        set version = excluded.version, replaces = 0, keep_until = excluded.keep_until,
            notice_at = excluded.notice_at, state = excluded.state
), counted as (
    update engine_records set copied = greatest(copied, $9) from clock where purpose = 'locks' and clock.is_in_force
)
select is_in_force from clock"#;

/// Looks at one page of the primary key. The next page begins after the last address of this one. A state begins with its token.
pub(super) const COLLECT: &str = r#"
with clock as materialized (
    select now, is_in_force from fence('locks', 'active', $4, $5)
), page as (
    select app, key, version, keep_until, notice_at from locks
    where (app, key) > ($1 collate "C", $2 collate "C")
    order by app, key
    limit $3
), idle as (
    -- A row that another session has locked is in use, or is found by the next walk.
    select l.app, l.key, substring(l.state from '^\{"token":([0-9]{1,16})[,}]')::bigint as token
    from clock, page p join locks l on l.app = p.app and l.key = p.key
    where clock.is_in_force and p.keep_until < clock.now and p.notice_at is null
        and l.version = p.version and l.keep_until = p.keep_until and l.notice_at is null
    for update of l skip locked
), removed as (
    delete from locks l using idle where l.app = idle.app and l.key = idle.key and idle.token < $6
    returning 1
), due as (
    select array_agg(app) as apps, array_agg(key) as keys from clock, page where notice_at < clock.now
), last as (
    select app, key from page order by app desc, key desc limit 1
)
select (select is_in_force from clock), (select count(*) from page), (select count(*) from removed),
    (select max(token) from idle where token >= $6), (select app from last), (select key from last),
    (select apps from due), (select keys from due)"#;
