-- A reader of the view `held` no longer keeps a switch to this database from beginning.

-- Removes all states and events, if the store is filling for this epoch and nothing is copied to it yet: a request that is carried out
-- late, or twice, removes no copied state.
create or replace function clear_locks(epoch bigint, knows_timeline boolean) returns boolean
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
            truncate latchgate.locks, latchgate.lock_events;
        exception when lock_not_available then
            -- A transaction that has read the view `held`, or a backup, keeps the tables from being truncated until it ends. Removing rows
            -- takes longer, but does not wait for it.
            delete from latchgate.locks;
            delete from latchgate.lock_events;
        end;
    end if;
    return coalesce(is_filling, false);
end
$$;
