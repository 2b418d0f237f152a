-- What all nodes go by, in one row. A commit is made only in the term that it was judged in, and on the server that this
-- row names: see postgres/cluster.rs.
create table cluster (
    one            boolean primary key default true check (one),
    -- The server that the nodes wrote to last: the system identifier, and the timeline, which a promotion changes.
    system         bigint not null,
    timeline       text not null,
    -- At random, anew with another server and with a hold-off that is set or ended; 0 at first.
    term           bigint not null,
    -- ms since the Unix epoch; before it nothing new is granted.
    hold_off_until bigint not null,
    -- The longest lease that any node was ever started with, in ms. It never falls by itself: when all nodes have been
    -- started with a shorter one, and the longest lease has run out, it may be set by hand.
    ttl_ms_max     bigint not null
);
