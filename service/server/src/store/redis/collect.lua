-- Removes states that need not be kept any longer, and index entries of states that have expired. Returns how many entries it
-- has removed, and the positions of the states that are due.
-- KEYS: the index; the states. ARGV: the address of each state; the run id of this server.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {0}
for i = 1, #ARGV - 1 do
    local address = ARGV[i]
    local value = redis.pcall('GET', KEYS[i + 1])
    if type(value) == 'table' then value = value.err end
    local keep, notice, locked_until
    if value then
        keep, notice, locked_until = string.match(value, '^%d+ (%d+) (%S+) (%d+):')
    end
    if notice and notice ~= '-' then
        if tonumber(notice) < now then answer[#answer + 1] = i end
    elseif not value or (keep and tonumber(keep) < now and tonumber(locked_until) <= now) then
        redis.call('DEL', KEYS[i + 1])
        redis.call('ZREM', KEYS[1], address)
        answer[1] = answer[1] + 1
    end
end
return answer
