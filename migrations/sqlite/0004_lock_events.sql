-- What has happened to keys; the columns are those of migrations/postgres/0004_lock_events.sql. There is one writer, so the
-- id alone is the order of the commits; it never repeats, even when all events have been deleted.
create table lock_events (
    id   integer primary key autoincrement,
    at   integer not null,
    app  text not null,
    key  text not null,
    kind text not null,
    body text not null
) strict;

create index lock_events_history on lock_events (app, key, id) where kind <> 'renewed';
create index lock_events_renewed on lock_events (id) where kind = 'renewed';
