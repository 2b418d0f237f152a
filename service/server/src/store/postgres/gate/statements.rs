//! The SQL. The clock is `clock_timestamp()` throughout: `now()` stands still from the beginning of a transaction,
//! waits for locks included.

/// Claims and replacements. Nothing is written unless the engine record says what `gate_fence` is given, and of a caller whose clock
/// is off, nothing either. Answers the clock, whether the record says so, and a row for each write that was not made, with the
/// record that is there in the place of a claim. Of several claims of one operation, at most one is made.
///
/// First come all inserts, then all updates, each in the order of the arrays (see `commit_locks` in the migration):
/// so two statements cannot deadlock. A row is replaced by its version: a statement that had to wait for its lock finds another
/// version there.
pub(super) const WRITE: &str = r#"
with clock as materialized (
    select now, is_in_force from gate_fence($1, $2, $3, $4)
), wanted as materialized (
    select w.*, abs(clock.now - w.now) <= $5 as is_right
    from clock, unnest(
        $7::text[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::boolean[],
        $15::bigint[], $16::text[], $17::text[]
    ) as w (app, id, now, replaces, version, operation, state, suspect, goes_at, record, wake_up)
    where clock.is_in_force
), inserted as (
    insert into operations (app, id, version, operation, state, suspect, goes_at, record)
    select app, id, version, operation, state, suspect, goes_at, record::jsonb from wanted
    where replaces is null and is_right
    on conflict (app, id) do nothing
    returning version
), updated as (
    update operations o
    set version = w.version, operation = w.operation, state = w.state, suspect = w.suspect,
        goes_at = w.goes_at, record = w.record::jsonb, posted = null
    from wanted w
    where w.replaces is not null and w.is_right and o.app = w.app collate "C" and o.id = w.id and o.version = w.replaces
    returning w.version, w.wake_up
), written as (
    select version, null as wake_up from inserted union all select version, wake_up from updated
)
select clock.now, clock.is_in_force, w.version, o.version, o.record, o.posted,
    (select count(pg_notify($6, wake_up)) from written where wake_up is not null)
from clock
left join wanted w on w.version not in (select version from written)
left join operations o on w.replaces is null and o.app = w.app collate "C" and o.id = w.id"#;

/// Engine record and operation are of one snapshot: if the record is in force there, so was the operation.
pub(super) const LOAD: &str = r#"
select clock.now, clock.is_in_force, o.version, o.record, o.posted
from (
    select now_ms() as now, $4::text is null or exists (
        select from engine_records
        where purpose = $3 and state = $4 and epoch = $5 and split_part(server, '/', 2) = timeline_here($6)
    ) as is_in_force
) clock
left join operations o on o.app = $1 and o.id = $2"#;

/// The row is found by its version, as in [`WRITE`].
pub(super) const REMOVE: &str = r#"
with clock as materialized (
    select now, is_in_force, is_in_force and abs(now - $3) <= $4 as is_right from gate_fence($5, $6, $7, $8)
), removed as (
    delete from operations o using clock
    where o.app = $1 and o.id = $2 and o.version = $9 and clock.is_right
    returning 1
)
select clock.now, clock.is_in_force, exists (select 1 from removed),
    (select count(pg_notify($10, $11)) from removed where $11 is not null)
from clock"#;

/// A bounded piece of the primary key, and what the filter leaves of it.
pub(super) const LIST: &str = r#"
select app, id, record, posted from (
    select app, id, operation, state, suspect, goes_at, record, posted from operations
    where (app, id) > ($1 collate "C", $2) and app <= $8
    order by app, id
    limit $6
) examined
where ($3::text is null or operation = $3) and ($4::text is null or state = $4) and (state <> 'vacant' or suspect)
    and (goes_at is null or goes_at + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)
order by app, id
limit $5"#;

/// Where the piece ends, if the table does not end first.
pub(super) const LAST_EXAMINED: &str = r#"
select app, id from operations
where (app, id) > ($1 collate "C", $2) and app <= $4
order by app, id
offset $3 - 1
limit 1"#;

/// Suspects are few and have an index of their own.
pub(super) const LIST_SUSPECTS: &str = r#"
select app, id, record, posted from operations
where (app, id) > ($1 collate "C", $2) and app <= $8 and suspect
    and ($3::text is null or operation = $3) and ($4::text is null or state = $4)
    and (goes_at is null or goes_at + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)
    and $6 > 0
order by app, id
limit $5"#;

/// A batch from the front of the index; rows that another transaction is changing can wait for the next one. The clock is read in
/// a subquery, once: compared with a volatile function, the index would be walked to its end.
pub(super) const EXPIRE: &str = r#"
delete from operations o
using (
    select app, id from operations
    where goes_at <= (select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint - $2)
    order by goes_at
    limit $1
    for update skip locked
) over
where o.app = over.app and o.id = over.id"#;

/// Records of fast operations, and those that say nothing of that, along the primary key.
pub(super) const DUMP: &str = r#"
select app, id, version, record, posted from operations
where (app, id) > ($1 collate "C", $2) and record ->> 'durability' is distinct from 'durable'
order by app, id
limit $3"#;

/// At most $5 of the records that a switch copies, so that no statement takes too long. Answers whether the store is filling, and
/// how many records were removed.
pub(super) const CLEAR: &str = r#"
with clock as materialized (
    select is_in_force from gate_fence($1, $2, $3, $4)
), removed as (
    delete from operations o
    using (
        select app, id from operations
        where record ->> 'durability' = 'fast'
        limit $5
    ) old, clock
    where clock.is_in_force and o.app = old.app and o.id = old.id
    returning 1
)
select clock.is_in_force, (select count(*) from removed) from clock"#;

pub(super) const COUNT: &str = r#"
with clock as materialized (
    select is_in_force from gate_fence($1, $2, $3, $4)
), counted as (
    update engine_records set copied = greatest(copied, $5) from clock where purpose = 'gate' and clock.is_in_force
)
select is_in_force from clock"#;
