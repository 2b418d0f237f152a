-- Removes keys while the store is filling.
-- KEYS: 1 the engine record; the keys. ARGV: 1 what the engine record must begin with.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
    return 0
end
for i = 2, #KEYS do
    redis.call('DEL', KEYS[i])
end
return 1
