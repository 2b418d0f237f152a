-- Long states and texts of events are compressed by LZ4 where the server has it: its own method takes several ms of CPU for a state of
-- 64 KiB.
do $$
begin
    alter table locks alter column state set compression lz4;
    alter table lock_events alter column events set compression lz4;
exception
    when feature_not_supported or invalid_parameter_value then
        raise notice 'this server has no LZ4: long states are compressed by pglz';
end
$$;
