-- Replaces the engine record if its revision is still the one that was read. Answers whether it was.
-- KEYS: the record. ARGV: 1 the revision that was read, '0' for no record; 2 the new value.
local value = redis.call('GET', KEYS[1])
local revision = '0'
-- Of anything that is no record: nil, which equals no revision.
if value then revision = string.match(value, '^%a+ %d+ (%d+) ') end
if revision ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
