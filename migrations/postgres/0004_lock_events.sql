-- What has happened to keys: for watchers, and as their history. Written in the statement that makes the change.
create table lock_events (
    -- Orders commits: the transaction that wrote it, or the last that had ended when it wrote, whichever is later. While a
    -- transaction is open, none that is open has a lower one: readers read what lies before all that are open, and so miss
    -- nothing that commits late. See postgres/events.rs. Another server counts its own: there, begin with an empty table.
    xid  bigint not null,
    -- Orders the events of a commit. A sequence's order alone is not the order of commits.
    id   bigint generated always as identity,
    -- ms since the Unix epoch.
    at   bigint not null,
    app  text collate "C" not null,
    key  text collate "C" not null,
    kind text not null,
    -- JSON: owner, mode, permits, token, waited_ms, held_ms, expires_at, reason, by; without what is absent.
    body text not null,
    -- For those who watch, and for deleting the oldest.
    primary key (xid, id)
) with (
    autovacuum_vacuum_scale_factor = 0.05
);

-- A key's history. Renewals are no part of it; they are for watchers and deleted long before the rest.
create index lock_events_history on lock_events (app, key, xid, id) where kind <> 'renewed';
create index lock_events_renewed on lock_events (xid, id) where kind = 'renewed';
