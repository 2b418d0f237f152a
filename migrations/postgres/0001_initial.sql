-- All tables and functions are in the schema `latchgate`, which is the search path of every connection.

-- The engine record: see store/engine_record.rs.
create table engine_records (
    -- `locks`: there is one record.
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
as $$ select 1 $$;

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

-- A setting that is off, although without it a crash may lose what was acknowledged; null if there is none. Where an operator has said that
-- the storage is durable without them, there is none: the settings of a session say so.
create function risk_here() returns text language sql volatile as $$
select case
    when current_setting('fsync') <> 'off' and current_setting('full_page_writes') <> 'off' then null
    when coalesce(current_setting('latchgate.durable_elsewhere', true), '') = 'on' then null
    when current_setting('fsync') = 'off' then 'fsync'
    else 'full_page_writes'
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

-- One row is the whole record of one operation, whose id is its key.
create table operations (
    app        text collate "C" not null,
    key        text collate "C" not null,
    version    bigint not null,
    replaces   bigint not null,
    keep_until bigint not null,
    notice_at  bigint,
    -- JSON as text, without what no rule reads.
    state      text not null,
    -- JSON as text: the result, and contents that were kept. No listing reads it.
    payload    text,
    -- What listings filter by.
    operation  text,
    phase      text,
    suspect    boolean not null,
    -- What a caller has posted in a transaction of its own. A node that reads the row applies it with the rule of operations, before
    -- anything is answered; the next write of the row has it applied, and removes it here.
    posted     jsonb,
    primary key (app, key)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Rows are removed in this order, a batch at a time. While an operation runs, the time is rounded up to the hour: so a heartbeat rarely
-- changes it, and is a heap-only update although the column is indexed.
create index operations_keep_until on operations (keep_until);
create index operations_suspect on operations (app, key) where suspect;

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

-- As `commit_locks`, without events.
create function commit_operations(
    apps text[], keys text[], versions bigint[], versions_replaced bigint[], times_kept bigint[], times_noticed bigint[], states text[],
    caller_now bigint, clock_bound bigint, epoch bigint, knows_timeline boolean, row_wait text,
    payloads text[], operations text[], phases text[], suspects boolean[],
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
    row_wait := set_config('lock_timeout', row_wait, true);
    if 0 = any (versions_replaced) then
        insert into latchgate.operations
            (app, key, version, replaces, keep_until, notice_at, state, payload, operation, phase, suspect)
        select c.*
        from unnest(apps, keys, versions, versions_replaced, times_kept, times_noticed, states, payloads, operations, phases, suspects)
            as c (app, key, version, replaces, keep_until, notice_at, state, payload, operation, phase, suspect)
        where c.replaces = 0
        on conflict do nothing;
        get diagnostics inserted = row_count;
    end if;
    if inserted < cardinality(apps) then
        update latchgate.operations l
        set version = c.version, replaces = c.replaces, keep_until = c.keep_until, notice_at = c.notice_at, state = c.state,
            payload = c.payload, operation = c.operation, phase = c.phase, suspect = c.suspect, posted = null
        from unnest(apps, keys, versions, versions_replaced, times_kept, times_noticed, states, payloads, operations, phases, suspects)
            as c (app, key, version, replaces, keep_until, notice_at, state, payload, operation, phase, suspect)
        where c.replaces > 0
            and l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.replaces;
        get diagnostics written = row_count;
    end if;
    written := written + inserted;
    if written < cardinality(apps) then
        select array_agg(l.app), array_agg(l.key) into apps_written, keys_written
        from unnest(apps, keys, versions) as c (app, key, version)
        join latchgate.operations l on l.app = c.app collate "C" and l.key = c.key collate "C" and l.version = c.version;
    end if;
end
$$;

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
        begin
            -- Autovacuum gives way after a second.
            perform set_config('lock_timeout', '2s', true);
            truncate latchgate.locks, latchgate.lock_events, latchgate.operations;
        exception when lock_not_available then
            -- A transaction that has read the view `held`, or a backup, keeps the tables from being truncated until it ends. Removing rows
            -- takes longer, but does not wait for it.
            delete from latchgate.locks;
            delete from latchgate.lock_events;
            delete from latchgate.operations;
        end;
    end if;
    return coalesce(is_filling, false);
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

-- Long states and texts of events are compressed by LZ4 where the server has it: its own method takes several ms of CPU for a state of
-- 64 KiB.
do $$
begin
    alter table locks alter column state set compression lz4;
    alter table lock_events alter column events set compression lz4;
    alter table operations alter column state set compression lz4;
    alter table operations alter column payload set compression lz4;
exception
    when feature_not_supported or invalid_parameter_value then
        raise notice 'this server has no LZ4: long states are compressed by pglz';
end
$$;

-- From here on: what the work of a caller uses in its own transactions in this database: a guard of a lease, a post to the gate, and views.

-- The numbers of the advisory locks of callers' transactions, beside those of `record_lock`. A guard or post takes it shared until its
-- transaction ends, and reads the engine record afterwards. A switch freezes the record first, and begins its copy when it can take the lock
-- exclusively: then no guard or post of the epoch before is open, and each later one is refused. The switch does not wait in the
-- queue of the lock, because later guards would wait behind it.
create function callers_lock(purpose text) returns integer language sql immutable
as $$ select latchgate.record_lock(purpose) + 16 $$;

-- Whether no guard or post is open. While the record is frozen, none can begin afterwards.
create function has_no_callers(purpose text) returns boolean language sql volatile
as $$ select pg_try_advisory_xact_lock(1279742547, latchgate.callers_lock(purpose)) $$;

-- Refuses unless the engine is active on this server, and makes the switch to another engine wait for the end of the transaction.
create function join_callers(purpose text) returns void language plpgsql volatile as $$
#variable_conflict use_variable
declare
    is_active boolean;
begin
    -- What nodes answer from is not lost in a crash.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    perform pg_advisory_xact_lock_shared(1279742547, latchgate.callers_lock(purpose));
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        -- All statements of the transaction have one snapshot, which may be older than the lock. A row lock fails (40001) if the record
        -- has changed since. It is given back at once, because a change of the record would wait for it.
        begin
            perform from latchgate.engine_records r where r.purpose = purpose for share;
            raise exception using errcode = 'LG000';
        exception when sqlstate 'LG000' then
            null;
        end;
    end if;
    select r.state = 'active'
        and split_part(r.server, '/', 2) = latchgate.timeline_here(split_part(r.server, '/', 2) <> '')
    into is_active
    from latchgate.engine_records r where r.purpose = purpose;
    if is_active is not true then
        raise exception 'not-active: this Postgres is not the engine in use' using
            errcode = 'LG002',
            hint = 'Roll back. Repeat the transaction later; if the engine was switched, it cannot succeed here.';
    end if;
end
$$;

-- The state of a key as JSON, if its version is the one that the functions below can read. An absent version is 1.
create function read_state(state text) returns jsonb language plpgsql immutable
set search_path = latchgate, pg_temp set debug_print_parse = off set debug_print_rewritten = off set debug_print_plan = off
as $$
declare
    read jsonb;
begin
    begin
        read := state::jsonb;
    exception when data_exception then
        read := null;
    end;
    if jsonb_typeof(read) is distinct from 'object' or coalesce(read -> 'v', '1') <> '1' then
        raise exception 'state-unreadable: the state of this lock is not one that this function can read' using errcode = 'LG003';
    end if;
    return read;
end
$$;

-- The live leases of a state at a time in ms. One row without an owner if the state cannot be read.
create function leases_of(state text, at bigint)
returns table (lease_id text, owner text, mode text, permits bigint, token bigint, since bigint, until bigint)
language plpgsql immutable
-- The caller's own settings must not show what the view does not: lease ids are secret.
set search_path = latchgate, pg_temp set debug_print_parse = off set debug_print_rewritten = off set debug_print_plan = off
as $$
#variable_conflict use_column
begin
    return query
        select h ->> 'lease_id', h ->> 'owner',
            case when jsonb_typeof(h -> 'mode') = 'object' then 'permits' else coalesce(h ->> 'mode', 'exclusive') end,
            (h -> 'mode' ->> 'permits')::bigint, (h ->> 'token')::bigint,
            (h ->> 'granted_at')::bigint, (h ->> 'expires_at')::bigint
        from jsonb_array_elements(coalesce(latchgate.read_state(state) -> 'holders', '[]')) as h
        where at < (h ->> 'expires_at')::bigint;
exception when data_exception or sqlstate 'LG003' then
    return query select null, null, 'unreadable', null::bigint, null::bigint, null::bigint, null::bigint;
end
$$;

-- Why a lease is not live at a time in ms, and when it ended; nulls if the state does not remember it.
create function end_of_lease(state text, lease_id text, token bigint, out why text, out at bigint)
language plpgsql immutable as $$
#variable_conflict use_variable
declare
    read jsonb := latchgate.read_state(state);
    -- As `recent.rs` writes it: 48 bits of the MD5.
    hash bigint := ('x' || substr(md5(lease_id), 1, 12))::bit(48)::bigint;
begin
    select case when (h -> 'revocation' ->> 'deadline')::bigint <= (h ->> 'expires_at')::bigint then 'revoked' else 'expired' end,
        (h ->> 'expires_at')::bigint
    into why, at
    from jsonb_array_elements(coalesce(read -> 'holders', '[]')) as h
    where h ->> 'lease_id' = lease_id or (h ->> 'token')::bigint = token
    order by (h ->> 'expires_at')::bigint desc
    limit 1;
    if not found then
        select case r ->> 1 when 'e' then 'expired' when 'r' then 'released' when 'v' then 'revoked' when 'f' then 'forced' end,
            (r ->> 2)::bigint
        into why, at
        from jsonb_array_elements(coalesce(read -> 'recent', '[]')) with ordinality as e (r, position)
        where (r ->> 0)::bigint = hash
        order by position desc
        limit 1;
    end if;
end
$$;

create function guard_lease(app text, key text, lease_id text, token bigint) returns bigint
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    state text;
    live bigint;
    why text;
    at bigint;
begin
    perform latchgate.join_callers('locks');
    -- Until the transaction ends, no commit changes the row. It is locked first and its clock is read afterwards: the lease is compared with
    -- a time after any wait for the row.
    select l.state into state from latchgate.locks l where l.app = app collate "C" and l.key = key collate "C" for share;
    select max(h.token) into live
    from latchgate.leases_of(state, latchgate.now_ms()) h
    where h.owner is not null and (h.lease_id = lease_id or h.token = token);
    if live is not null then
        return live;
    end if;
    if state is not null then
        select e.why, e.at into why, at from latchgate.end_of_lease(state, lease_id, token) e;
    end if;
    raise exception 'lease-lost: %', case
        when why is null then format('no lease on %s with this %s is known', to_json(key), case when token is null then 'id' else 'token' end)
        else format('the lease on %s has ended: %s at %s', to_json(key), why, to_char(to_timestamp(at / 1000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
    end using
        errcode = 'LG001',
        detail = coalesce(why, 'unknown'),
        hint = 'Roll back: another client may hold the lock.';
end
$$;

-- Returns the token of a live lease. Until the transaction ends, the lock is granted to no other client. Fails unless the lease is live.
create function guard(key text, lease_id text, app text default 'default') returns bigint
language sql volatile security definer set search_path = latchgate, pg_temp set debug_print_parse = off set debug_print_rewritten = off set debug_print_plan = off
as $$ select latchgate.guard_lease(app, key, lease_id, null) $$;

-- The same for any lease with this token.
create function guard(key text, token bigint, app text default 'default') returns bigint
language sql volatile security definer set search_path = latchgate, pg_temp set debug_print_parse = off set debug_print_rewritten = off set debug_print_plan = off
as $$ select latchgate.guard_lease(app, key, null, token) $$;

-- Why a stamp cannot post.
create function refuse_post(code text, reason text, detail text) returns void language plpgsql volatile as $$
begin
    raise exception '%', reason using errcode = code, detail = coalesce(detail, ''), hint = 'Roll back: this attempt must not do its work.';
end
$$;

-- The stamp of the attempt that holds a record.
create function holder_of(record jsonb, posted jsonb) returns text language sql immutable as $$
select coalesce(
    posted ->> 'stamp',
    record #>> '{phase,started,stamp}', record #>> '{phase,unknown,stamp}', record #>> '{phase,succeeded,stamp}'
)
$$;

-- Posts how an attempt has ended, in the transaction of its work: both are committed or neither. Returns the number of the attempt. Fails
-- unless the attempt holds the operation, and if it has posted before. An attempt that takes over waits for the end of the transaction.
create function post(
    id text, stamp text, result text default null, outcome text default 'success', app text default 'default',
    retention_ms bigint default null
) returns integer
language plpgsql volatile security definer set search_path = latchgate, pg_temp set debug_print_parse = off set debug_print_rewritten = off set debug_print_plan = off as $$
#variable_conflict use_variable
declare
    given text := stamp;
    at bigint;
    o latchgate.operations;
    body jsonb;
begin
    if coalesce(outcome, '') not in ('success', 'failure', 'unknown') then
        raise exception 'invalid-request: outcome must be success, failure or unknown' using errcode = 'LG009';
    elsif retention_ms not between 1000 and 31536000000 then
        raise exception 'invalid-request: retention_ms must be 1000 to 31536000000' using errcode = 'LG009';
    elsif octet_length(result) > 65536 then
        raise exception 'invalid-request: result must not be longer than 64 KiB' using errcode = 'LG009';
    elsif coalesce(stamp !~ '^[0-9a-f]{32}$', true) then
        perform latchgate.refuse_post('LG005', 'stamp-mismatch: the stamp is not one of an operation in this Postgres', null);
    elsif coalesce(id !~ '^[0-9a-f]{32}$', true) then
        perform latchgate.refuse_post('LG004', 'operation-not-found: no operation has this id', null);
    end if;
    perform result::json;
    perform latchgate.join_callers('locks');
    select * into o from latchgate.operations r where r.app = app collate "C" and r.key = id collate "C" for update;
    at := latchgate.now_ms();
    body := o.state::jsonb;
    if o.phase is null or o.keep_until + 100 <= at then
        perform latchgate.refuse_post('LG004', 'operation-not-found: this Postgres has no such operation, or no longer', null);
    elsif latchgate.holder_of(body, o.posted) is distinct from given then
        if body -> 'earlier' @> jsonb_build_array(jsonb_build_object('stamp', given, 'ending', 'failed')) then
            perform latchgate.refuse_post('LG006', 'operation-posted: this attempt has posted already', 'failure');
        elsif body -> 'earlier' @> jsonb_build_array(jsonb_build_object('stamp', given)) then
            perform latchgate.refuse_post('LG007', 'operation-superseded: another attempt has taken over', null);
        elsif o.phase = 'vacant' then
            perform latchgate.refuse_post('LG004', 'operation-not-found: the operation was forgotten', null);
        end if;
        perform latchgate.refuse_post('LG005', 'stamp-mismatch: the stamp is not that of an attempt of this operation', null);
    elsif not (o.phase = 'started' or o.phase = 'unknown' and outcome <> 'unknown') then
        perform latchgate.refuse_post('LG006', 'operation-posted: this attempt has posted already',
            case o.phase when 'succeeded' then 'success' when 'vacant' then 'failure' else 'unknown' end);
    end if;
    -- A node replaces the record only if it has seen this version of it. Version, state and end are those of the record with the report
    -- applied (see `end` and `goes_at` of the gate's rules; a test compares them).
    update latchgate.operations r
    set version = ('x' || substr(md5(gen_random_uuid()::text), 1, 15))::bit(60)::bigint,
        posted = jsonb_build_object(
            'stamp', given, 'report', outcome, 'result', result, 'retention_ms', retention_ms, 'at', at
        ),
        phase = case outcome when 'success' then 'succeeded' when 'failure' then 'vacant' else 'unknown' end,
        keep_until = case outcome
            when 'success' then at + case
                when retention_ms is not null then retention_ms
                when body ->> 'retention' = 'forever' then 4503599627370496 - at
                else coalesce((body #>> '{retention,ms}')::bigint, 86400000)
            end
            when 'failure' then at + case when o.suspect then 86400000 else 600000 end
            else coalesce((body ->> 'ends_at')::bigint, 4503599627370496)
        end
    where r.app = o.app and r.key = o.key;
    return (body ->> 'attempt')::integer;
end
$$;

-- The attempts that have started and have not posted.
create view running as
select o.app, o.key as id, o.operation, o.state::jsonb #>> '{description,label}' as label,
    (o.state::jsonb ->> 'attempt')::integer as attempt,
    to_timestamp((o.state::jsonb #>> '{phase,started,at}')::bigint / 1000.0) as since,
    to_timestamp((o.state::jsonb #>> '{phase,started,lease_until}')::bigint / 1000.0) as until
from latchgate.operations o
where o.phase = 'started' and o.keep_until + 100 > latchgate.now_ms()
    and exists (select from latchgate.engine_records r where r.purpose = 'locks' and r.state = 'active');

-- The leases that are live.
create view held as
select l.app, l.key, h.owner, h.mode, h.permits, h.token,
    to_timestamp(h.since / 1000.0) as since, to_timestamp(h.until / 1000.0) as until
from latchgate.locks l
cross join lateral latchgate.leases_of(l.state, latchgate.now_ms()) h
where exists (select from latchgate.engine_records r where r.purpose = 'locks' and r.state = 'active');

-- Creates the roles where that is allowed, and grants them what they may use. A database whose owner may not create roles gets the grants
-- when the function is called after the roles have been created.
create function grant_roles() returns void language plpgsql volatile as $$
declare
    wanted text;
begin
    foreach wanted in array array['latchgate_guard', 'latchgate_read'] loop
        begin
            if not exists (select from pg_roles where rolname = wanted) then
                execute format('create role %I nologin', wanted);
            end if;
        -- Roles belong to the whole server: another database may create the same ones at this moment.
        exception when insufficient_privilege or duplicate_object or unique_violation then
            null;
        end;
        if exists (select from pg_roles where rolname = wanted) then
            execute format('grant usage on schema latchgate to %I', wanted);
        end if;
    end loop;
    if exists (select from pg_roles where rolname = 'latchgate_guard') then
        grant execute on function latchgate.guard(text, text, text), latchgate.guard(text, bigint, text),
            latchgate.post(text, text, text, text, text, bigint) to latchgate_guard;
    end if;
    if exists (select from pg_roles where rolname = 'latchgate_read') then
        grant select on latchgate.held, latchgate.running to latchgate_read;
        grant execute on function latchgate.now_ms(), latchgate.read_state(text), latchgate.leases_of(text, bigint) to latchgate_read;
    end if;
end
$$;

revoke execute on all functions in schema latchgate from public;
select grant_roles();
