-- Stores, replaces or removes a record, if the engine record says what is required, the caller's clock is right, and the present value is
-- the expected one.
-- KEYS: 1 the engine record; 2 the record; 3 the app's suspects.
-- ARGV: 1 what the engine record must begin with, before the run id of this server, '' for no matter; 2 the caller's clock, ms; 3 how far it may be off;
-- 4 what the present value must begin with, '' if there must be none; 5 the new value, '' to remove; 6 for how long, ms, 0 for ever; 7 the id;
-- 8 whether it is a suspect; 9 channel; 10 message, '' for none; 11 the run id of this server.
-- Answers the clock; 1 if it was written, 0 if another value is there, false if the clock is off; the value in the place of a claim.
local required = ARGV[1] .. ARGV[11] .. ' '
if ARGV[1] ~= '' and redis.call('GETRANGE', KEYS[1], 0, #required - 1) ~= required then
    return redis.error_reply('EPOCHOVER this epoch is over')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A removal may expect an empty value.
local is_claim = ARGV[4] == '' and ARGV[5] ~= ''
local existing = is_claim and redis.call('GET', KEYS[2])
if existing then
    return {now, 0, existing}
end
if math.abs(now - ARGV[2]) > tonumber(ARGV[3]) then
    return {now, false, false}
end
if not is_claim and redis.call('GETRANGE', KEYS[2], 0, #ARGV[4] - 1) ~= ARGV[4] then
    return {now, 0, false}
end
if ARGV[5] == '' then
    redis.call('DEL', KEYS[2])
elseif ARGV[6] == '0' then
    redis.call('SET', KEYS[2], ARGV[5])
else
    redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
end
if ARGV[8] == '1' then
    redis.call('ZADD', KEYS[3], 0, ARGV[7])
elseif not is_claim then
    redis.call('ZREM', KEYS[3], ARGV[7])
end
if ARGV[10] ~= '' then
    redis.call('PUBLISH', ARGV[9], ARGV[10])
end
return {now, 1, false}
