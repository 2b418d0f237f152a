-- Replaces the engine record if its revision is still the one that was read, on the same server. Answers whether it was.
-- KEYS: the record. ARGV: 1 the revision that was read, '0' for no record; 2 the server that it was read on: its run id, and its last
-- promotion; 3 and 4 the new value before and after the server; 5 when it was read, by this server's clock; 6 the run id of this server.
if string.sub(ARGV[2], 1, #ARGV[6] + 1) ~= ARGV[6] .. ' ' then return 0 end
-- A hold-off counts from when the record was read. Since then another one may have been written, and lost.
local time = redis.call('TIME')
if math.abs(time[1] * 1000 + time[2] / 1000 - ARGV[5]) > 10000 then return 0 end
local value = redis.call('GET', KEYS[1])
local revision = '0'
-- Of anything that is no record: nil, which equals no revision.
if value then revision = string.match(value, '^%a+ %d+ %S+ %S+ (%d+) ') end
if revision ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. ARGV[2] .. ' ' .. ARGV[4])
return 1
