-- Removes states that need not be kept any longer and whose token is lower than all new ones, and index entries without a state. Returns
-- how many entries it has removed, the highest token that is not lower, and the positions of the states that are due.
-- The number of the last event of a removed key stays as long as histories are kept.
-- KEYS: the index; the engine record; the states; the number of the last event of each of their keys. ARGV: 1 how the record must begin,
-- before the run id of this server; 2 the lowest new token, or '' for states that have no tokens; the address of each state; how long histories are kept, in ms; the run id.
local required = ARGV[1] .. ARGV[#ARGV] .. ' '
if redis.call('GETRANGE', KEYS[2], 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local removed, token_kept, due = 0, false, {}
local count = #ARGV - 4
for i = 3, count + 2 do
    -- What comes before the state, and its token.
    local value = redis.pcall('GETRANGE', KEYS[i], 0, 255)
    if type(value) == 'table' then value = value.err end
    if value == '' then value = false end
    local keep, notice, locked_until, token
    if value then
        local pattern = ARGV[2] == '' and '^%d+ (%d+) (%S+) (%d+):%S* ' or '^%d+ (%d+) (%S+) (%d+):%S* {"token":(%d+)'
        keep, notice, locked_until, token = string.match(value, pattern)
    end
    if notice and notice ~= '-' then
        if tonumber(notice) < now then due[#due + 1] = i - 2 end
    elseif not value or (keep and tonumber(keep) < now and tonumber(locked_until) <= now) then
        if value and token and tonumber(token) >= tonumber(ARGV[2]) then
            token_kept = math.max(token_kept or 0, tonumber(token))
        else
            -- A state may be large.
            redis.call('UNLINK', KEYS[i])
            redis.call('ZREM', KEYS[1], ARGV[i])
            -- Only locks have histories.
            if ARGV[2] ~= '' then redis.call('PEXPIRE', KEYS[i + count], ARGV[#ARGV - 1]) end
            removed = removed + 1
        end
    end
end
return {removed, token_kept, due}
