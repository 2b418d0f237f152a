-- One row is the whole record of one operation id; the columns are those of migrations/postgres/0002_operations.sql.
create table operations (
    app       text not null,
    id        blob not null,
    version   integer not null,
    operation text not null,
    state     text not null,
    suspect   integer not null,
    goes_at   integer,
    record    text not null,
    primary key (app, id)
) strict;

create index operations_goes_at on operations (goes_at) where goes_at is not null;
create index operations_suspect on operations (app, id) where suspect;
