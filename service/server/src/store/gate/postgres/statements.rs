//! The SQL. The clock is `clock_timestamp()` throughout: `now()` stands still from the beginning of a transaction,
//! waits for locks included.

/// One statement: the insert does nothing to an id that has a row, and the select beside it shows that row.
pub(super) const CLAIM: &str = r#"
with clock as materialized (
    select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now
), claimed as (
    insert into operations (app, id, version, operation, state, suspect, goes_at, record)
    select $1, $2, $5, $6, $7, $8, $9, $10
    from clock where abs(clock.now - $3) <= $4
    on conflict (app, id) do nothing
    returning 1
)
select clock.now, exists (select 1 from claimed), o.version, o.record
from clock left join operations o on o.app = $1 and o.id = $2"#;

pub(super) const LOAD: &str = r#"
select clock.now, o.version, o.record
from (select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now) clock
left join operations o on o.app = $1 and o.id = $2"#;

/// The row is found by its version; whoever waited for its lock finds another one there.
pub(super) const REPLACE: &str = r#"
with clock as materialized (
    select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now
), replaced as (
    update operations o
    set version = $5, operation = $6, state = $7, suspect = $8, goes_at = $9, record = $10
    from clock
    where o.app = $1 and o.id = $2 and o.version = $11 and abs(clock.now - $3) <= $4
    returning 1
)
select clock.now, exists (select 1 from replaced),
    (select count(pg_notify($12, $13)) from replaced where $13 is not null)
from clock"#;

pub(super) const REMOVE: &str = r#"
with clock as materialized (
    select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint as now
), removed as (
    delete from operations o using clock
    where o.app = $1 and o.id = $2 and o.version = $5 and abs(clock.now - $3) <= $4
    returning 1
)
select clock.now, exists (select 1 from removed),
    (select count(pg_notify($6, $7)) from removed where $7 is not null)
from clock"#;

/// A bounded piece of the primary key, and what the filter leaves of it.
pub(super) const LIST: &str = r#"
select id, record from (
    select id, operation, state, suspect, goes_at, record from operations
    where app = $1 and id > $2
    order by id
    limit $6
) examined
where ($3::text is null or operation = $3) and ($4::text is null or state = $4) and (state <> 'vacant' or suspect)
    and (goes_at is null or goes_at + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)
order by id
limit $5"#;

/// Where the piece ends, if the table does not end first.
pub(super) const LAST_EXAMINED: &str = r#"
select id from operations
where app = $1 and id > $2
order by id
offset $3 - 1
limit 1"#;

/// Suspects are few and have an index of their own.
pub(super) const LIST_SUSPECTS: &str = r#"
select id, record from operations
where app = $1 and id > $2 and suspect
    and ($3::text is null or operation = $3) and ($4::text is null or state = $4)
    and (goes_at is null or goes_at + $7 > floor(date_part('epoch', clock_timestamp()) * 1000)::bigint)
    and $6 > 0
order by id
limit $5"#;

/// A batch from the front of the index; rows that somebody is changing can wait for the next one. The clock is read in
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

pub(super) const PING: &str = r#"select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint"#;
