-- Replaces the board if its version is still the expected one. Answers whether it was.
-- KEYS: the board. ARGV: 1 the expected version, '0' for no board; 2 the new value, which begins with its version.
local value = redis.call('GET', KEYS[1])
local version = '0'
-- Of something that is no board: nil, which nobody expects.
if value then version = string.match(value, '^(%d+) ') end
if version ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
