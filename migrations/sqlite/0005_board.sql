-- The document by which the nodes of an engine set agree; the columns are those of migrations/postgres/0006_board.sql.
create table boards (
    one     integer primary key check (one = 1),
    version integer not null,
    text    text not null
) strict;
