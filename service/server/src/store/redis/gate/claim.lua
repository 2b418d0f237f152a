-- Stores a record if the id has none, if the engine record says what is required and the caller's clock is right.
-- KEYS: 1 the engine record; 2 the record; 3 the app's suspects.
-- ARGV: 1 what the engine record must begin with, before the run id of this server, '' for no matter; 2 the caller's clock, ms; 3 how far it may be off; 4 the value;
-- 5 for how long, ms, 0 for ever; 6 the id; 7 whether it is a suspect; 8 the run id of this server.
-- Answers the clock; 1 if the record was stored, 0 if the id has one, 2 if the clock is off; the record that is there.
local required = ARGV[1] .. ARGV[8] .. ' '
if ARGV[1] ~= '' and redis.call('GETRANGE', KEYS[1], 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local existing = redis.call('GET', KEYS[2])
if existing then
    return {now, 0, existing}
end
if math.abs(now - ARGV[2]) > tonumber(ARGV[3]) then
    return {now, 2, false}
end
if ARGV[5] == '0' then
    redis.call('SET', KEYS[2], ARGV[4])
else
    redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
end
if ARGV[7] == '1' then
    redis.call('ZADD', KEYS[3], 0, ARGV[6])
end
return {now, 1, false}
