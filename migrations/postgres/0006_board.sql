-- The documents by which nodes agree, each in one row: those of an engine set of locks, `locks`, and those of the gate on two
-- stores, `gate`. See store/board.rs. No row: none was ever written.
create table boards (
    name    text primary key,
    -- At random with every write.
    version bigint not null,
    text    text not null
);
