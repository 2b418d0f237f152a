-- The document by which the nodes of an engine set agree, in one row: see store/board.rs. No row: none was ever written.
create table boards (
    one     boolean primary key default true check (one),
    -- At random with every write.
    version bigint not null,
    text    text not null
);
