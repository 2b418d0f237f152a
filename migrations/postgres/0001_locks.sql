-- One row is the whole state of one key. Nothing but the primary key is indexed: every renewal changes the other
-- columns, and an index on one of them would end heap-only updates.
create table locks (
    app        text collate "C" not null,
    key        text collate "C" not null,
    -- Never repeats for a key, not even when its row is collected and made anew: see Version in store/mod.rs.
    version    bigint not null,
    -- The version that this one replaced; 0 for a new row.
    replaces   bigint not null,
    -- ms since the Unix epoch; after it the row may be collected, if unchanged.
    keep_until bigint not null,
    -- ms since the Unix epoch; after it a lease in the state needs a look. Null: never. The walk that collects rows finds it.
    notice_at  bigint,
    -- JSON as text: nothing here looks into it, and parsing it in every commit would cost the database a sixth of its time.
    state      text not null,
    primary key (app, key)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
