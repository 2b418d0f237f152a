//! The SQL. The clock is always `clock_timestamp()`, because `now()` stands still during a transaction, also while it waits
//! for locks.

use crate::store::RowState;

/// The statements for the rows of one kind.
pub(super) struct Statements {
    /// One row for each address, in the order of the request. The lateral subquery with its limit makes the planner use one probe
    /// of the primary key for each address. Record and states are from one snapshot, so the record applies to the states.
    pub load: &'static str,
    /// Takes the row locks in key order, so that two transactions cannot deadlock.
    pub lock: &'static str,
    /// See `commit_locks` and `commit_operations` in the migration.
    pub commit: &'static str,
    /// The clock, and which of the addresses have a row that no other session has locked.
    pub unlocked: &'static str,
    /// A page of all rows, in the order of the primary key.
    pub dump: &'static str,
    /// Writes copied states, replacing existing ones.
    pub fill: &'static str,
    /// Looks at one page of the primary key. The next page begins after the last address of this one.
    pub collect: &'static str,
}

/// `own` are the columns that only this kind has, behind those that all have; `values` are their names in `c`, `set` their assignments,
/// `arrays` the arrays of `fill` behind those of all kinds.
macro_rules! statements {
    (
        $table:literal, commit: $commit:literal, collect: $collect:expr, read: $read:literal, own: $own:literal, values: $values:literal, set: $set:literal,
        arrays: $arrays:literal
    ) => {
        Statements {
            load: concat!(
                "
select now_ms(), here.is_in_force, l.version, l.state", $read, "
from (
    select exists (
        select from engine_records
        where purpose = 'locks' and state = 'active' and epoch = $3 and split_part(server, '/', 2) = timeline_here($4)
    ) as is_in_force
) here,
unnest($1::text[], $2::text[]) with ordinality as requested (app, key, position)
left join lateral (
    select * from ", $table, " r
    where r.app = requested.app collate \"C\" and r.key = requested.key collate \"C\"
    limit 1
) l on true
order by requested.position"
            ),
            lock: concat!(
                "
select 1 from ", $table, "
where (app, key) in (select app collate \"C\", key collate \"C\" from unnest($1::text[], $2::text[]) as requested (app, key))
order by app, key
for update"
            ),
            commit: $commit,
            unlocked: concat!(
                "
with unlocked as materialized (
    select l.app, l.key
    from unnest($1::text[], $2::text[]) as requested (app, key)
    join ", $table, " l on l.app = requested.app collate \"C\" and l.key = requested.key collate \"C\"
    for update of l skip locked
)
select now_ms(), array_agg(app), array_agg(key) from unlocked"
            ),
            dump: concat!(
                "
select app, key, notice_at, keep_until, l.state", $read, " from ", $table, " l
where (app, key) > ($1 collate \"C\", $2 collate \"C\")
order by app, key
limit $3"
            ),
            fill: concat!(
                "
with clock as materialized (
    select is_in_force from fence('locks', 'filling', $7, $8)
), filled as (
    insert into ", $table, " (app, key, version, replaces, keep_until, notice_at, state", $own, ")
    select c.app, c.key, c.version, 0, c.keep_until, c.notice_at, c.state", $values, "
    from clock, unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]", $arrays, ")
        as c (app, key, version, keep_until, notice_at, state", $own, ")
    where clock.is_in_force
    on conflict (app, key) do update
        set version = excluded.version, replaces = 0, keep_until = excluded.keep_until,
            notice_at = excluded.notice_at, state = excluded.state", $set, "
), counted as (
    update engine_records set copied = greatest(copied, $9) from clock where purpose = 'locks' and clock.is_in_force
)
select is_in_force from clock"
            ),
            collect: $collect,
        }
    };
}

/// Removes the rows of idle keys of one page. A state begins with its token.
const COLLECT: &str = r#"
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

/// Removes what need not be kept, in the order of the index. Operations have no tokens, and nothing happens at their end. The clock is read once:
/// compared with a volatile function, the index would be walked to its end.
const COLLECT_OPERATIONS: &str = "
with clock as materialized (
    select now, is_in_force from fence('locks', 'active', $4, $5)
), old as (
    select app, key from operations
    where keep_until <= (select now - 100 from clock) and (select is_in_force from clock)
        and $1::text is not null and $2::text is not null and $6::bigint is not null
    order by keep_until
    limit $3
    for update skip locked
), removed as (
    delete from operations o using old where o.app = old.app and o.key = old.key
    returning 1
)
select (select is_in_force from clock), (select count(*) from removed), (select count(*) from removed), null::bigint, '', '',
    null::text[], null::text[]";

static LOCKS: Statements = statements!(
    "locks",
    commit: "
select now, is_in_force, written, apps_written, keys_written
from commit_locks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    collect: COLLECT, read: "", own: "", values: "", set: "", arrays: ""
);

static OPERATIONS: Statements = statements!(
    "operations",
    commit: "
select now, is_in_force, written, apps_written, keys_written
from commit_operations($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
    collect: COLLECT_OPERATIONS,
    read: ", l.payload, l.posted::text",
    own: ", payload, operation, phase, suspect",
    values: ", c.payload, c.operation, c.phase, c.suspect",
    set: ", payload = excluded.payload, operation = excluded.operation, phase = excluded.phase, suspect = excluded.suspect, posted = null",
    arrays: ", $10::text[], $11::text[], $12::text[], $13::boolean[]"
);

pub(super) const fn of<S: RowState>() -> &'static Statements {
    S::KIND.pick(&LOCKS, &OPERATIONS)
}

/// See `probe_locks` in the migration.
pub(super) const PROBE: &str = "select probe_locks($1)";

pub(super) const LIST: &str = r#"
select key, state from locks
where app = $1 and key >= $2 and key > $3 and key < $5
order by key
limit $4"#;

pub(super) const APP_AFTER: &str = "select min(app) from locks where app > $1";

pub(super) const CLEAR: &str = "select clear_locks($1, $2)";

/// A bounded piece of the primary key, and what the filter leaves of it, without payloads.
pub(super) const LIST_OPERATIONS: &str = r#"
select app, key, state, null::text, posted::text from (
    select * from operations where (app, key) > ($1 collate "C", $2 collate "C") and app <= $8 order by app, key limit $6
) examined
where ($3::text is null or operation = $3) and ($4::text is null or phase = $4) and (phase <> 'vacant' or suspect)
    and keep_until + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint
order by app, key
limit $5"#;

/// Where the piece ends, if the table does not end first.
pub(super) const LAST_EXAMINED: &str = r#"
select app, key from operations where (app, key) > ($1 collate "C", $2 collate "C") and app <= $4 order by app, key offset $3 - 1 limit 1"#;

/// Suspects are few and have an index of their own.
pub(super) const LIST_SUSPECTS: &str = r#"
select app, key, state, null::text, posted::text from operations
where (app, key) > ($1 collate "C", $2 collate "C") and app <= $8 and suspect
    and ($3::text is null or operation = $3) and ($4::text is null or phase = $4)
    and keep_until + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint and $6 > 0
order by app, key
limit $5"#;

pub(super) const OPERATION_VERSION: &str =
    r#"select version from operations where app = $1 collate "C" and key = $2 collate "C""#;

pub(super) const DISCARD: &str = r#"
delete from operations o using fence('locks', 'active', $3, $4) f
where f.is_in_force and o.app = $1 collate "C" and o.key = $2 collate "C" and o.version = $5"#;
