-- One row is the whole record of one operation id.
create table operations (
    app       text collate "C" not null,
    -- MD5, 16 bytes.
    id        bytea not null,
    -- At random with every write.
    version   bigint not null,
    operation text not null,
    state     text not null,
    -- A double run is suspected.
    suspect   boolean not null,
    -- ms since the Unix epoch; after it the row may go. Null: never by itself. Rounded up to the hour while the
    -- operation runs, so that a heartbeat seldom changes it and can stay a heap-only update in spite of the index.
    goes_at   bigint,
    record    jsonb not null,
    primary key (app, id)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- What is over is found from the front, a batch at a time.
create index operations_goes_at on operations (goes_at) where goes_at is not null;
create index operations_suspect on operations (app, id) where suspect;
