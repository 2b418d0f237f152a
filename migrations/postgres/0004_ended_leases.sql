-- States have the leases that have ended as one text.

-- Why a lease is not live at a time in ms, and when it ended; nulls if the state does not remember it.
create or replace function end_of_lease(state text, lease_id text, token bigint, out why text, out at bigint)
language plpgsql immutable as $$
#variable_conflict use_variable
declare
    read jsonb := latchgate.read_state(state);
    -- As `recent.rs` writes it: the bytes of the lease id as one number, modulo a prime. A lease id is ASCII, and has at most 64 characters.
    number bigint := 0;
    -- As an earlier version wrote it: 48 bits of the MD5.
    hash text := substr(md5(lease_id), 1, 12);
begin
    select case when (h -> 'revocation' ->> 'deadline')::bigint <= (h ->> 'expires_at')::bigint then 'revoked' else 'expired' end,
        (h ->> 'expires_at')::bigint
    into why, at
    from jsonb_array_elements(coalesce(read -> 'holders', '[]')) as h
    where h ->> 'lease_id' = lease_id or (h ->> 'token')::bigint = token
    order by (h ->> 'expires_at')::bigint desc
    limit 1;
    if not found then
        for i in 1 .. coalesce(least(length(lease_id), 64), 0) loop
            number := (number * 256 + ascii(substr(lease_id, i, 1))) % 140737488355213;
        end loop;
        -- Entries of 12 digits, a letter and 12 digits. A capital letter marks one of the earlier version. Its own list has three values.
        select case lower(e.letter) when 'e' then 'expired' when 'r' then 'released' when 'v' then 'revoked' when 'f' then 'forced' end, e.at
        into why, at
        from (
            select substr(entry, 1, 12) as number, substr(entry, 13, 1) as letter, ('x' || substr(entry, 14, 12))::bit(48)::bigint as at, start as position
            from (
                select substr(read ->> 'ended', start, 25) as entry, start
                from generate_series(1, length(read ->> 'ended'), 25) as start
            ) as entries
            union all
            select lpad(to_hex((r ->> 0)::bigint), 12, '0'), upper(r ->> 1), (r ->> 2)::bigint, position
            from jsonb_array_elements(read -> 'recent') with ordinality as earlier (r, position)
        ) as e
        where lease_id is not null and e.number = case when e.letter = lower(e.letter) then lpad(to_hex(number), 12, '0') else hash end
        order by e.position desc
        limit 1;
    end if;
end
$$;
