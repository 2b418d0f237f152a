-- The documents by which nodes agree; the columns are those of migrations/postgres/0006_board.sql.
create table boards (
    name    text primary key,
    version integer not null,
    text    text not null
) strict;
