-- One row is the whole state of one key; the columns are those of migrations/postgres/0001_initial.sql.
create table locks (
    app        text not null,
    key        text not null,
    version    integer not null,
    replaces   integer not null,
    keep_until integer not null,
    notice_at  integer,
    state      text not null,
    primary key (app, key)
) strict, without rowid;

-- One row is the whole record of one operation id; the columns are those of migrations/postgres/0001_initial.sql.
create table operations (
    app       text not null,
    id        blob not null,
    version   integer not null,
    operation text not null,
    state     text not null,
    suspect   integer not null,
    fallback  integer not null,
    goes_at   integer,
    record    text not null,
    primary key (app, id)
) strict;

create index operations_goes_at on operations (goes_at) where goes_at is not null;
create index operations_suspect on operations (app, id) where suspect;
create index operations_fallback on operations (app, id) where fallback;

-- Secrets that the nodes of a cluster share with each other and with no client.
create table secrets (
    name  text primary key,
    value blob not null
) strict;

-- Audit records: see migrations/postgres/0001_initial.sql.
create table audit_records (
    at    integer not null,
    id    integer not null,
    class integer not null,
    body  text not null,
    primary key (at, id)
) strict, without rowid;

create index audit_records_class on audit_records (class, at, id);

-- The events of keys. The columns are those of migrations/postgres/0001_initial.sql. There is one writer, so the id alone is the
-- order of commits. It never repeats, even after all events have been deleted.
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

-- The engine records: see migrations/postgres/0001_initial.sql. The body contains the state and the epoch.
create table engine_records (
    purpose  text primary key,
    revision integer not null,
    copied   integer not null,
    body     text not null
) strict;

-- The document of apps and API keys, as JSON: see migrations/postgres/0001_initial.sql.
create table access_document (
    only_one integer primary key check (only_one = 1),
    version  integer not null,
    body     text not null
) strict;
