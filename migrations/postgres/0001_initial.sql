-- All tables and functions are in the schema `latchgate`, which is the search path of every connection.

-- The engine records: see store/engine_record.rs.
create table engine_records (
    -- `locks`, `gate` or `durable`.
    purpose  text primary key,
    -- A new random number with every write.
    revision bigint not null,
    -- standby, filling, active, moving or retired.
    state    text not null,
    epoch    bigint not null,
    -- Where the record was written: the system identifier, the timeline, which a promotion changes, and the database, each after a `/`.
    server   text not null,
    -- How many states copiers have written since the store began to fill.
    copied   bigint not null default 0,
    -- The whole record, as JSON.
    body     text not null
);

-- The number of the advisory lock of a record. A load or commit takes it shared, a change of the record exclusively.
create function record_lock(purpose text) returns integer language sql immutable
as $$ select case purpose when 'locks' then 1 when 'gate' then 2 else 3 end $$;

create function timeline_here(is_known boolean) returns text language sql volatile
as $$ select case when is_known then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) else '' end $$;

-- Of a dump that is loaded, database and table are new ones.
create function server_here(is_known boolean) returns text language sql volatile as $$
select case
    when is_known then (select system_identifier from pg_control_system()) || '/' || latchgate.timeline_here(true)
    else '/'
end || '/' || (select d.oid from pg_database d where d.datname = current_database()) || '.' || 'latchgate.engine_records'::regclass::oid
$$;

-- Each node that runs counts here, and compares the number with the one that it remembers: see postgres/marks.rs.
create table node_marks (
    node    bigint primary key,
    counter bigint not null,
    -- ms since the Unix epoch. The row of a node that has stopped is removed.
    at      bigint not null
) with (fillfactor = 50);

create function now_ms() returns bigint language sql volatile
as $$ select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$;

-- A setting that is off, although without it a crash may lose what was acknowledged; null if there is none.
create function risk_here() returns text language sql volatile as $$
select case
    when current_setting('fsync') = 'off' then 'fsync'
    when current_setting('full_page_writes') = 'off' then 'full_page_writes'
end
$$;

-- A table that a crash empties, because another program has made it unlogged; null if there is none.
create function unlogged_here() returns text language sql volatile as $$
select min(c.relname) from pg_class c where c.relnamespace = 'latchgate'::regnamespace and c.relkind = 'r' and c.relpersistence <> 'p'
$$;

-- Whether the operator accepts such a server: the settings of a session say so.
create function allows_volatile() returns boolean language sql volatile
as $$ select coalesce(current_setting('latchgate.allow_volatile', true), '') = 'on' $$;

-- Refuses to write on such a server, unless that is accepted. Each transaction that writes asks, because settings change while nodes run.
create function refuse_risk() returns void language plpgsql volatile as $$
begin
    if latchgate.risk_here() is not null and not latchgate.allows_volatile() then
        raise exception 'this Postgres has % = off: a crash would forget locks that are held', latchgate.risk_here()
            using errcode = 'LG010';
    end if;
end
$$;

-- Whether the record has this state and epoch, on this server. The answer stays true until the transaction ends, because a change
-- of the record waits for the advisory lock. The lock is taken before the record is read, and each statement in a volatile
-- function has its own snapshot, so the record is never older than the lock.
create function fence(purpose text, state text, epoch bigint, knows_timeline boolean, out now bigint, out is_in_force boolean)
language plpgsql volatile as $$
begin
    if latchgate.risk_here() is not null then
        perform latchgate.refuse_risk();
    end if;
    perform pg_advisory_xact_lock_shared(1279742547, latchgate.record_lock(purpose));
    is_in_force := exists (
        select from latchgate.engine_records r
        where r.purpose = fence.purpose and r.state = fence.state and r.epoch = fence.epoch
            and split_part(r.server, '/', 2) = latchgate.timeline_here(knows_timeline)
    );
    now := latchgate.now_ms();
end
$$;

-- Replaces the record if neither it nor the server has changed since it was read. Revision 0 means that there was no record.
create function replace_engine_record(
    purpose text, revision_read bigint, server_read text, knows_timeline boolean,
    revision bigint, state text, epoch bigint, body text
) returns boolean
language plpgsql volatile as $$
begin
    perform latchgate.refuse_risk();
    perform pg_advisory_xact_lock(1279742547, latchgate.record_lock(purpose));
    if latchgate.server_here(knows_timeline) <> server_read then
        return false;
    end if;
    if revision_read = 0 then
        insert into latchgate.engine_records (purpose, revision, state, epoch, server, body)
        values ($1, $5, $6, $7, $3, $8)
        on conflict do nothing;
    else
        update latchgate.engine_records r
        set revision = $5, state = $6, epoch = $7, server = $3, copied = 0, body = $8
        where r.purpose = $1 and r.revision = $2;
    end if;
    return found;
end
$$;

-- One row is the whole state of one key. Only the primary key is indexed: every renewal changes the other columns, and an index
-- on one of them would prevent heap-only updates.
create table locks (
    app        text collate "C" not null,
    key        text collate "C" not null,
    -- Never repeats for a key, even if its row is removed and created again: see Version in store/mod.rs.
    version    bigint not null,
    -- The version that this one has replaced; 0 for a new row.
    replaces   bigint not null,
    -- ms since the Unix epoch. After this time the row may be removed.
    keep_until bigint not null,
    -- ms since the Unix epoch. After this time the collection has the state evaluated again, because a lease has ended. Null: never.
    notice_at  bigint,
    -- JSON as text: no statement looks into it, and parsing it in every commit would cost the database a sixth of its time.
    state      text not null,
    primary key (app, key)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Removes all states and events, if the store is filling for this epoch and nothing is copied to it yet: a request that is carried out
-- late, or twice, removes no copied state.
create function clear_locks(epoch bigint, knows_timeline boolean) returns boolean
language plpgsql volatile as $$
declare
    is_filling boolean;
begin
    -- A copier's write in flight holds this lock shared, and has counted before it is released.
    perform pg_advisory_xact_lock(1279742547, latchgate.record_lock('locks'));
    select f.is_in_force and r.copied = 0 into is_filling
    from latchgate.fence('locks', 'filling', epoch, knows_timeline) f, latchgate.engine_records r
    where r.purpose = 'locks';
    if is_filling then
        truncate latchgate.locks, latchgate.lock_events;
    end if;
    return coalesce(is_filling, false);
end
$$;

-- One row is the whole record of one operation id.
create table operations (
    app       text collate "C" not null,
    -- MD5, 16 bytes.
    id        bytea not null,
    -- A new random number with every write.
    version   bigint not null,
    operation text not null,
    state     text not null,
    -- Whether the operation may have run twice.
    suspect   boolean not null,
    -- ms since the Unix epoch. After this time the row may be removed. Null: never. It is rounded up to the hour while the operation
    -- runs: so a heartbeat rarely changes it, and is a heap-only update although the column is indexed.
    goes_at   bigint,
    record    jsonb not null,
    primary key (app, id)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Expired rows are removed in this order, a batch at a time.
create index operations_goes_at on operations (goes_at) where goes_at is not null;
create index operations_suspect on operations (app, id) where suspect;

-- As `fence`; without a state, nothing is required and the lock is not taken.
create function gate_fence(
    purpose text, state text, epoch bigint, knows_timeline boolean, out now bigint, out is_in_force boolean
)
language plpgsql volatile as $$
begin
    if state is null then
        perform latchgate.refuse_risk();
        now := latchgate.now_ms();
        is_in_force := true;
    else
        select f.now, f.is_in_force into now, is_in_force from latchgate.fence(purpose, state, epoch, knows_timeline) f;
    end if;
end
$$;

-- Numbers the events of one statement: each statement takes one number, and those up to the next are for its events.
create sequence lock_event_numbers increment by 1048576;

-- The events of keys, for watchers and for the history. They are written in the statement that makes the changes: one row for all
-- events of a statement, because an index entry and a row for each event cost more than a commit without events.
create table lock_events (
    -- Orders commits: the transaction that wrote the events, or the last one that had ended at that time, whichever is later. Readers
    -- read only events below the oldest open transaction, so they miss none that commits late: see postgres/events.rs. On another
    -- server transactions have other numbers, so the table must be empty when it is moved there.
    xid          bigint not null,
    -- Events are ordered by their numbers, within one `xid`. This is the number of the row's last event.
    last         bigint not null,
    -- ms since the Unix epoch: the time of the newest event.
    at           bigint not null,
    -- How many events the row has. Their numbers are `last - count + 1` to `last`.
    count        integer not null,
    -- One value for each event: a hash of its app and key, `#` with the slice of `xid` (see `event_slice`). So the
    -- events of a busy key are found slice by slice.
    hashes       bigint[] not null,
    apps         text[] not null,
    keys         text[] not null,
    -- Kind, time in ms and body of each event, separated by spaces. The body is JSON: owner, mode, permits, token, waited_ms, held_ms,
    -- expires_at, reason, by, subject. Absent fields are left out.
    events       text[] not null,
    -- For watchers, and for deleting the oldest events.
    primary key (xid, last),
    check (count > 0 and cardinality(apps) = count and cardinality(keys) = count and cardinality(events) = count)
) with (
    autovacuum_vacuum_scale_factor = 0.05
);

-- To compress them costs more than to write them.
alter table lock_events
    alter apps set storage external, alter keys set storage external, alter events set storage external;

-- For the history of a key. Entries are collected, and put into the tree together; the limit bounds how long that takes.
create index lock_events_hashes on lock_events using gin (hashes) with (fastupdate = on, gin_pending_list_limit = 256);

create function event_slice(xid bigint) returns bigint language sql immutable
as $$ select xid >> 12 $$;

-- Writes events in the order of the arrays. A number is taken, and the transaction gets its `xid`. See postgres/events.rs.
create function log_lock_events(apps text[], keys text[], events text[], hashes bigint[], at bigint) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    base bigint := nextval('latchgate.lock_event_numbers');
    xid bigint :=
        greatest(pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1);
    slice bigint := latchgate.event_slice(xid);
begin
    insert into latchgate.lock_events (xid, last, at, count, hashes, apps, keys, events)
    values (
        xid, base + cardinality(events), at, cardinality(events), array(select h # slice from unnest(hashes) as h), apps, keys, events
    );
end
$$;

-- Writes the rows of a batch: of a change with `replaces` 0 a new one, of another one the row whose version is `replaces`. Then their events.
-- Writes nothing unless the store is active in this epoch and the caller's clock, `caller_now`, is right. Waits for a locked row no longer
-- than `row_wait`: the other keys of the batch are not to wait for one key. If not all changes were made, `apps_written` and `keys_written`
-- say which were.
--
-- It is a function because most of the time that a small commit takes in Postgres goes into the preparation of its statement. Of a function
-- only the parts are prepared that are needed.
create function commit_locks(
    apps text[], keys text[], versions bigint[], versions_replaced bigint[], times_kept bigint[], times_noticed bigint[], states text[],
    caller_now bigint, clock_bound bigint, epoch bigint, knows_timeline boolean, row_wait text,
    event_apps text[], event_keys text[], events text[], hashes bigint[], newest bigint,
    out now bigint, out is_in_force boolean, out written bigint, out apps_written text[], out keys_written text[]
)
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    fenced record;
    inserted bigint := 0;
begin
    fenced := latchgate.fence('locks', 'active', epoch, knows_timeline);
    now := fenced.now;
    is_in_force := fenced.is_in_force;
    written := 0;
    if not is_in_force or abs(now - caller_now) > clock_bound then
        return;
    end if;
    -- An assignment costs less than `perform`.
    row_wait := set_config('lock_timeout', row_wait, true);
    -- First all inserts, then all updates. An insert may have to wait for a transaction that inserts or updates the same row. If the batch
    -- already held rows that it had updated, two batches could deadlock. In this order, a batch that holds updated rows waits only for
    -- updates, which follow the order of the keys.
    if 0 = any (versions_replaced) then
        insert into latchgate.locks (app, key, version, replaces, keep_until, notice_at, state)
        select c.*
        from unnest(apps, keys, versions, versions_replaced, times_kept, times_noticed, states)
            as c (app, key, version, replaces, keep_until, notice_at, state)
        where c.replaces = 0
        on conflict do nothing;
        get diagnostics inserted = row_count;
    end if;
    -- A plain update needs half the log records of `on conflict do update`, which locks each row in a separate step. The settings in
    -- sessions.rs force a nested loop, which takes the rows in the order of the arrays, so that two batches cannot deadlock.
    if inserted < cardinality(apps) then
        update latchgate.locks l
        set version = c.version, replaces = c.replaces, keep_until = c.keep_until, notice_at = c.notice_at, state = c.state
        from unnest(apps, keys, versions, versions_replaced, times_kept, times_noticed, states)
            as c (app, key, version, replaces, keep_until, notice_at, state)
        where c.replaces > 0
            and l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.replaces;
        get diagnostics written = row_count;
    end if;
    written := written + inserted;
    if written < cardinality(apps) then
        -- No version is used twice.
        select array_agg(l.app), array_agg(l.key) into apps_written, keys_written
        from unnest(apps, keys, versions) as c (app, key, version)
        join latchgate.locks l on l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.version;
        select array_agg(e.app order by e.number), array_agg(e.key order by e.number), array_agg(e.event order by e.number),
            array_agg(e.hash order by e.number)
        into event_apps, event_keys, events, hashes
        from unnest(event_apps, event_keys, events, hashes) with ordinality as e (app, key, event, hash, number)
        where (e.app collate "C", e.key collate "C") in (select u.app, u.key from unnest(apps_written, keys_written) as u (app, key));
    end if;
    if cardinality(events) > 0 then
        perform latchgate.log_lock_events(event_apps, event_keys, events, hashes, newest);
    end if;
end
$$;

-- Commits as grants and renewals do, so that it fails if they do. No other transaction sees what it writes, because it removes it again.
create function probe_locks(knows_timeline boolean, out now bigint) language plpgsql volatile as $$
#variable_conflict use_variable
declare
    -- No key, because apps have names. Sessions do not wait for each other.
    probe text := pg_backend_pid()::text;
    at bigint := latchgate.now_ms();
    written record;
begin
    written := latchgate.commit_locks(
        array[''], array[probe], array[at * 1024], array[0], array[at], array[at], array[format('{"token":%s}', at * 1024)],
        at, 60000, (select r.epoch from latchgate.engine_records r where r.purpose = 'locks'), knows_timeline, '100ms',
        array[''], array[probe], array[format('granted %s {"token":%s}', at, at * 1024)], array[at], at
    );
    now := written.now;
    if not written.is_in_force then
        return;
    end if;
    update latchgate.locks l set version = l.version + 1, replaces = l.version, state = l.state || ' ' where l.app = '' and l.key = probe;
    delete from latchgate.locks l where l.app = '' and l.key = probe;
    if not found then
        raise exception 'the table locks does not keep what is written to it';
    end if;
    delete from latchgate.lock_events e
    where e.xid >= pg_current_xact_id()::text::bigint and e.apps = array[''] and e.keys = array[probe];
end
$$;

-- The events of a key, newest first: at most `most` before a position. It looks at one slice of transactions
-- after the other, and at twice as many each time. So it reads neither all events of a busy key nor each slice of an idle one.
create function lock_history(wanted_app text, wanted_key text, hash bigint, before_xid bigint, before_number bigint, most bigint)
returns table (xid bigint, number bigint, event text, at bigint) language plpgsql stable
-- The index of hashes can be read in no other way. The primary key is of no use here, because it has the events of all keys.
set enable_bitmapscan = on
as $$
#variable_conflict use_column
declare
    remaining bigint := most;
    slices bigint := 1;
    oldest bigint := (select latchgate.event_slice(min(e.xid)) from latchgate.lock_events e);
    newest bigint := (select latchgate.event_slice(least(max(e.xid), before_xid)) from latchgate.lock_events e);
    first_slice bigint;
    wanted bigint[];
    packed record;
    returned bigint;
begin
    while remaining > 0 and newest >= oldest loop
        first_slice := greatest(newest - slices + 1, oldest);
        wanted := array(select hash # slice from generate_series(first_slice, newest) as slice);
        for packed in
            select * from latchgate.lock_events e
            where e.hashes && wanted and latchgate.event_slice(e.xid) between first_slice and newest
                and (e.xid + 0, e.last - e.count) < (before_xid, before_number)
            order by e.xid + 0 desc, e.last desc
        loop
            return query
                select packed.xid, f.number, f.event, packed.at
                from (
                    select packed.last - packed.count + u.position as number, u.event
                    from unnest(packed.apps, packed.keys, packed.events) with ordinality as u (app, key, event, position)
                    where u.app = wanted_app and u.key = wanted_key
                ) f
                where (packed.xid, f.number) < (before_xid, before_number)
                order by f.number desc
                limit remaining;
            get diagnostics returned = row_count;
            remaining := remaining - returned;
            exit when remaining <= 0;
        end loop;
        newest := first_slice - 1;
        slices := slices * 2;
    end loop;
end
$$;

-- Texts that are each changed as a whole: see store/documents.rs. One is the secret of the nodes.
create table documents (
    name    text primary key,
    -- As the writer chose it, not 0.
    version bigint not null,
    body    text not null
);

-- Replaces the document if its version is still the one that was read. Version 0 means that there was none. With a state, answers null
-- unless the engine record has this state and epoch.
create function replace_document(
    name text, version_read bigint, version bigint, body text, state text, epoch bigint, knows_timeline boolean
) returns boolean
language plpgsql volatile as $$
begin
    if state is not null and not (select f.is_in_force from latchgate.fence('locks', state, epoch, knows_timeline) f) then
        return null;
    end if;
    if version_read = 0 then
        insert into latchgate.documents (name, version, body) values ($1, $3, $4) on conflict do nothing;
    else
        update latchgate.documents d set version = $3, body = $4 where d.name = $1 and d.version = $2;
    end if;
    return found;
end
$$;
