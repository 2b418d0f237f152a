-- KEYS: the record; the app's suspects; the engine record.
-- ARGV: 1 the caller's clock, ms; 2 how far it may be off; 3 what the present value must begin with, its version; 4 the new value, '' to remove;
-- 5 for how long, ms, 0 for ever; 6 the id; 7 whether it is a suspect; 8 channel; 9 message, '' for none;
-- 10 what the engine record must begin with, before 11, the run id of this server; '' for no matter.
local required = ARGV[10] .. ARGV[11] .. ' '
if ARGV[10] ~= '' and redis.call('GETRANGE', KEYS[3], 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then
    return {now, false}
end
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[3] - 1) ~= ARGV[3] then
    return {now, 0}
end
if ARGV[4] == '' then
    redis.call('DEL', KEYS[1])
elseif ARGV[5] == '0' then
    redis.call('SET', KEYS[1], ARGV[4])
else
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
end
if ARGV[7] == '1' then
    redis.call('ZADD', KEYS[2], 0, ARGV[6])
else
    redis.call('ZREM', KEYS[2], ARGV[6])
end
if ARGV[9] ~= '' then
    redis.call('PUBLISH', ARGV[8], ARGV[9])
end
return {now, 1}
