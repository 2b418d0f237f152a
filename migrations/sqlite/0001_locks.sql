-- One row is the whole state of one key; the columns are those of migrations/postgres/0001_locks.sql.
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
