-- Locks all states that exist, or none if another locker has locked one of them. Returns the clock, and the values before
-- locking.
-- KEYS: the engine record; the states. ARGV: 1 the locker's name; 2 for how long, in ms; 3 how the engine record must begin,
-- before 4, the run id of this server.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local states = {unpack(KEYS)}
local required = ARGV[3] .. ARGV[4] .. ' '
if redis.call('GETRANGE', table.remove(states, 1), 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
local values = {}
for i, key in ipairs(states) do
    values[i] = redis.pcall('GET', key)
    -- Of something else than a string, its error: it is no state, and is left as it is.
    if type(values[i]) == 'table' then values[i] = values[i].err end
    if values[i] then
        local locked_until, locked_by = string.match(values[i], '^%d+ %d+ %S+ (%d+):(%S*) ')
        if locked_by and locked_by ~= ARGV[1] and tonumber(locked_until) > now then
            return {now, false}
        end
    end
end
local lock = string.format('%.0f:%s', now + ARGV[2], ARGV[1])
for i, key in ipairs(states) do
    if values[i] then
        local value, is_state = string.gsub(values[i], '^(%d+ %d+ %S+) %S+', '%1 ' .. lock, 1)
        if is_state == 1 then redis.call('SET', key, value) end
    end
end
return {now, values}
