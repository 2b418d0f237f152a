-- Locks all states that are there, or none if somebody else has locked one of them. Answers the clock and the values as
-- they were.
-- KEYS: the states. ARGV: 1 who locks; 2 for how long, ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local values = {}
for i, key in ipairs(KEYS) do
    values[i] = redis.call('GET', key)
    if values[i] then
        local locked_until, locked_by = string.match(values[i], '^%d+ %d+ %S+ (%d+):(%S*) ')
        if locked_by and locked_by ~= ARGV[1] and tonumber(locked_until) > now then
            return {now, false}
        end
    end
end
local lock = string.format('%.0f:%s', now + ARGV[2], ARGV[1])
for i, key in ipairs(KEYS) do
    if values[i] then
        local value = string.gsub(values[i], '^(%d+ %d+ %S+) %S+', '%1 ' .. lock, 1)
        redis.call('SET', key, value, 'KEEPTTL')
    end
end
return {now, values}
