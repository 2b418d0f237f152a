//! The SQL. A batch is one JSON array, so that one statement writes it, and SQLite commits that by itself.

pub(super) const LOAD: &str = "
select l.version, l.state
from json_each(?1) as requested
left join locks as l on l.app = requested.value ->> 0 and l.key = requested.value ->> 1
order by requested.key";

pub(super) const COMMIT: &str = "
insert into locks as l (app, key, version, replaces, keep_until, notice_at, state)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
from json_each(?1) as c
-- The row of a change must still exist. A new row must not exist: the conflict below checks that.
where value ->> 3 = 0 or exists (select 1 from locks where app = c.value ->> 0 and key = c.value ->> 1)
on conflict (app, key) do update
    set version = excluded.version, replaces = excluded.replaces,
        keep_until = excluded.keep_until, notice_at = excluded.notice_at, state = excluded.state
    where l.version = excluded.replaces
returning app, key";

pub(super) const LIST: &str = "
select key, state from locks
where app = ?1 and key >= ?2 and key > ?3 and key < ?5
order by key
limit ?4";

/// A page of all rows, in the order of the primary key.
pub(super) const DUMP: &str = "
select app, key, notice_at, keep_until, state from locks
where (app, key) > (?1, ?2)
order by app, key
limit ?3";

/// Writes copied states, replacing existing ones.
pub(super) const FILL: &str = "
insert into locks (app, key, version, replaces, keep_until, notice_at, state)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
from json_each(?1)
where true
on conflict (app, key) do update
    set version = excluded.version, replaces = excluded.replaces,
        keep_until = excluded.keep_until, notice_at = excluded.notice_at, state = excluded.state";

pub(super) const CLEAR: &str = "delete from locks; delete from lock_events; delete from lock_event_keys";

pub(super) const PAGE: &str = "
select app, key, coalesce(notice_at < ?4, false) from locks
where (app, key) > (?1, ?2)
order by app, key
limit ?3";

pub(super) const COLLECT: &str = "
delete from locks
where (app, key) > (?1, ?2) and (app, key) <= (?3, ?4) and keep_until < ?5 and notice_at is null";

/// Commits about as much as a grant. It must change something: SQLite does not write a row that stays the same. The tables of
/// grants must be there.
pub(super) const PROBE: &str = "
begin immediate;
insert into secrets (name, value) values ('probe', randomblob(3000))
on conflict (name) do update set value = excluded.value;
update locks set version = version where false;
update lock_events set at = at where false;
update lock_event_keys set last = last where false;
update lock_event_numbers set last = last where false;
commit";

pub(super) const KEEP_SECRET: &str =
    "insert into secrets (name, value) values ('cluster', ?1) on conflict (name) do nothing";

pub(super) const SECRET: &str = "select value from secrets where name = 'cluster'";

pub(super) const SET_SECRET: &str =
    "insert into secrets (name, value) values ('cluster', ?1) on conflict (name) do update set value = excluded.value";

pub(super) const ACCESS: &str = "select version, case when version <> ?1 then body end from access_document";

pub(super) const INSERT_ACCESS: &str =
    "insert into access_document (only_one, version, body) select 1, ?1, ?2 where ?3 = 0 on conflict do nothing";

pub(super) const REPLACE_ACCESS: &str = "update access_document set version = ?1, body = ?2 where version = ?3";
