-- Removes a state that cannot be decoded, and no other one that has replaced it.
-- KEYS: the engine record; the state; the index. ARGV: 1 how the record must begin, before the run id of this server; 2 the address; 3 the
-- value; then the run id.
local required = ARGV[1] .. ARGV[#ARGV] .. ' '
if redis.call('GETRANGE', KEYS[1], 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return false end
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('DEL', KEYS[2])
return true
