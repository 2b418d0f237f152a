-- What the work of a caller uses in its own transactions in this database: a guard of a lease, a post to the gate, and views.

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

-- What a caller has posted in a transaction of its own: stamp, report, result, retention_ms and the time. A node that reads the record
-- applies it with the rule of the gate, before anything is answered; the next write of the record has it applied, and removes it here.
alter table operations add column posted jsonb;

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
    -- Beside a Redis, durable operations have an engine record of their own.
    is_second boolean := exists (select from latchgate.engine_records r where r.purpose = 'durable');
    is_durable boolean := is_second and exists (
        select from latchgate.operations r
        where r.app = app collate "C" and r.id = decode(case when id ~ '^[0-9a-f]{32}$' then id end, 'hex') and r.record ->> 'durability' = 'durable'
    );
    at bigint;
    o latchgate.operations;
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
    perform latchgate.join_callers(case when is_durable then 'durable' else 'gate' end);
    select * into o from latchgate.operations r where r.app = app collate "C" and r.id = decode(id, 'hex') for update;
    at := latchgate.now_ms();
    if o.id is null or o.goes_at + 100 <= at or is_durable <> (is_second and o.record ->> 'durability' = 'durable') then
        perform latchgate.refuse_post('LG004', 'operation-not-found: this Postgres has no such operation, or no longer', null);
    elsif latchgate.holder_of(o.record, o.posted) is distinct from given then
        if o.record -> 'earlier' @> jsonb_build_array(jsonb_build_object('stamp', given, 'ending', 'failed')) then
            perform latchgate.refuse_post('LG006', 'operation-posted: this attempt has posted already', 'failure');
        elsif o.record -> 'earlier' @> jsonb_build_array(jsonb_build_object('stamp', given)) then
            perform latchgate.refuse_post('LG007', 'operation-superseded: another attempt has taken over', null);
        elsif o.state = 'vacant' then
            perform latchgate.refuse_post('LG004', 'operation-not-found: the operation was forgotten', null);
        end if;
        perform latchgate.refuse_post('LG005', 'stamp-mismatch: the stamp is not that of an attempt of this operation', null);
    elsif not (o.state = 'started' or o.state = 'unknown' and outcome <> 'unknown') then
        perform latchgate.refuse_post('LG006', 'operation-posted: this attempt has posted already',
            case o.state when 'succeeded' then 'success' when 'vacant' then 'failure' else 'unknown' end);
    end if;
    -- A node replaces the record only if it has seen this version of it. Version, state and end are those of the record with the report
    -- applied (see `end` and `goes_at` of the gate's rules; a test compares them).
    update latchgate.operations r
    set version = ('x' || substr(md5(gen_random_uuid()::text), 1, 15))::bit(60)::bigint,
        posted = jsonb_build_object(
            'stamp', given, 'report', outcome, 'result', result, 'retention_ms', retention_ms, 'at', at
        ),
        state = case outcome when 'success' then 'succeeded' when 'failure' then 'vacant' else 'unknown' end,
        goes_at = case outcome
            when 'success' then at + case
                when retention_ms is not null then retention_ms
                when o.record ->> 'retention' = 'forever' then null
                else coalesce((o.record #>> '{retention,ms}')::bigint, 86400000)
            end
            when 'failure' then at + case when o.suspect then 86400000 else 600000 end
        end
    where r.app = o.app and r.id = o.id;
    return (o.record ->> 'attempt')::integer;
end
$$;

-- The attempts that have started and have not posted.
create view running as
select o.app, encode(o.id, 'hex') as id, o.operation, o.record #>> '{description,label}' as label, (o.record ->> 'attempt')::integer as attempt,
    to_timestamp((o.record #>> '{phase,started,at}')::bigint / 1000.0) as since,
    to_timestamp((o.record #>> '{phase,started,lease_until}')::bigint / 1000.0) as until
from latchgate.operations o
where o.state = 'started' and coalesce(o.goes_at + 100 > latchgate.now_ms(), true)
    and exists (
        select from latchgate.engine_records r
        where r.state = 'active'
            and (r.purpose = 'gate' or r.purpose = 'durable' and o.record ->> 'durability' = 'durable')
    );

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
