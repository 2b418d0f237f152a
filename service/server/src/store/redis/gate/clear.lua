-- Removes keys while the store is filling.
-- KEYS: 1 the engine record; the keys. ARGV: 1 what the engine record must begin with, before 2, the run id of this server.
local required = ARGV[1] .. ARGV[2] .. ' '
if redis.call('GETRANGE', KEYS[1], 0, #required - 1) ~= required then
    return 0
end
for i = 2, #KEYS do
    redis.call('DEL', KEYS[i])
end
return 1
