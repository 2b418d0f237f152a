-- Writes with the commands of a commit, and returns the clock.
-- KEYS: what probes write. ARGV: how long it is kept, in ms.
local time = redis.call('TIME')
-- First, because Redis does not stop a script for lack of memory once it has written.
redis.call('SET', KEYS[1], time[1], 'PX', ARGV[1])
redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('ZADD', KEYS[1], 0, time[1])
redis.call('DEL', KEYS[1])
redis.call('XADD', KEYS[1], '*', 'a', time[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return time
