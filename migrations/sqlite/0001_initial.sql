-- One row is the whole state of one key; the columns are those of migrations/postgres/0001_initial.sql.
create table locks (
    app        text not null,
    key        text not null,
    version    integer not null,
    replaces   integer not null,
    keep_until integer not null,
    notice_at  integer,
    state      text not null,
    -- What only rows of operations have.
    payload    text,
    operation  text,
    phase      text,
    suspect    integer,
    primary key (app, key)
) strict, without rowid;

-- One row is the whole record of one operation, whose id is its key.
create table operations (
    app        text not null,
    key        text not null,
    version    integer not null,
    replaces   integer not null,
    keep_until integer not null,
    notice_at  integer,
    -- Without what no rule reads.
    state      text not null,
    -- The result, and contents that were kept: no listing reads them.
    payload    text,
    -- What listings filter by.
    operation  text,
    phase      text,
    suspect    integer,
    primary key (app, key)
) strict;

create index operations_keep_until on operations (keep_until);
create index operations_suspect on operations (app, key) where suspect;

-- The number of the last event. There is one writer, so numbers are in the order of commits. They never repeat, even after all events
-- have been deleted.
create table lock_event_numbers (
    only_one integer primary key check (only_one = 1),
    last     integer not null
) strict;

insert into lock_event_numbers (only_one, last) values (1, 0);

-- The events of keys, for watchers and for the history: one row for all events of a commit, because a row and an index entry for
-- each event cost more than a commit without events.
create table lock_events (
    -- The number of the row's last event.
    last   integer primary key,
    -- ms since the Unix epoch: the time of the newest event.
    at     integer not null,
    -- How many events the row has. Their numbers are `last - count + 1` to `last`.
    count  integer not null,
    -- One line for each event: a JSON array of app, key, kind, time in ms and body.
    events text not null
) strict;

-- For the history of a key: the rows of `lock_events` that have events of it. A slice is 1024 numbers (see store/sqlite/events.rs), so
-- a commit changes only the few pages of the newest slice, whatever its keys are.
create table lock_event_keys (
    slice integer not null,
    -- Of the app and the key.
    hash  integer not null,
    last  integer not null,
    primary key (slice, hash, last)
) strict, without rowid;

-- The engine records: see migrations/postgres/0001_initial.sql.
create table engine_records (
    purpose  text primary key,
    revision integer not null,
    state    text not null,
    epoch    integer not null,
    copied   integer not null,
    body     text not null
) strict;

-- See migrations/postgres/0001_initial.sql.
create table documents (
    name    text primary key,
    version integer not null,
    body    text not null
) strict;
