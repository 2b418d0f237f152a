-- Writes the changes whose expected version is the current one (or all, or none), logs their events, and unlocks states.
--
-- KEYS: the index, the stream of events, the number of the last event, the engine record; then for each change its state and its
-- history; then the states to unlock.
-- ARGV: 1 the caller's clock in ms, or '' for no check; 2 how far it may be off; 3 the number of changes; 4 whether to write all
-- or none; 5 the locker whose own locks do not count; 6, 7 the length of a history, and how long it is kept, in ms; 8 how the
-- engine record must begin, before the run id of this server, or ''. Then for each change: its address; the expected version, or '' to
-- log events only; the new value; the number of events; the events.
-- The last one is the run id of this server.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, own = tonumber(ARGV[3]), ARGV[5]
local SHARED = 4

-- Where the arguments of each change begin. A table for each would take longer.
local begins, at = {}, 9
for i = 1, count do
    begins[i] = at
    at = at + 4 + ARGV[at + 3]
end
local function state_of(i) return KEYS[SHARED + i * 2 - 1] end

local function unlock()
    for i = SHARED + count * 2 + 1, #KEYS do
        local value = redis.pcall('GET', KEYS[i])
        if type(value) == 'string' and string.match(value, '^%d+ %d+ %S+ %d+:(%S*) ') == own then
            value = string.gsub(value, '^(%d+ %d+ %S+) %S+', '%1 0:', 1)
            redis.call('SET', KEYS[i], value)
        end
    end
end

-- Only the part before the state: Lua hashes every byte of a string that it is given.
local HEAD_MAX = 128
local function holds(i)
    local expected = ARGV[begins[i] + 1]
    if expected == '' then return true end
    local value = redis.pcall('GETRANGE', state_of(i), 0, HEAD_MAX - 1)
    -- Another program has written something else than a string. The other changes do not fail for it.
    if type(value) == 'table' then return false end
    if value == '' then return expected == '0' end
    local version, locked_until, locked_by = string.match(value, '^(%d+) %d+ %S+ (%d+):(%S*) ')
    return version == expected and (locked_by == own or tonumber(locked_until) <= now)
end

local function write(i)
    local at = begins[i]
    if ARGV[at + 1] == '' then return end
    redis.call('SET', state_of(i), ARGV[at + 2])
    if ARGV[at + 1] == '0' then redis.call('ZADD', KEYS[1], 0, ARGV[at]) end
end

-- The stream that all locks share gets one entry for many events: its id has the number of the last one, and its fields are the
-- numbers, with the address and the event as their values.
local PACKED_MAX = 32
local packed = {}
local function flush()
    if #packed > 0 then
        redis.call('XADD', KEYS[2], packed[#packed - 1] .. '-0', unpack(packed))
        packed = {}
    end
end
local function pack(number, address, event)
    packed[#packed + 1] = number
    packed[#packed + 1] = address .. '\0' .. event
    if #packed >= 2 * PACKED_MAX then flush() end
end

local number
local function log(i)
    local at, history = begins[i], KEYS[SHARED + i * 2]
    local event_count = tonumber(ARGV[at + 3])
    if event_count == 0 then return end
    number = number or math.max(tonumber(redis.call('GET', KEYS[3]) or 0), now * 1024)
    for place = at + 4, at + 3 + event_count do
        number = number + 1
        local digits, event = string.format('%.0f', number), ARGV[place]
        pack(digits, ARGV[at], event)
        -- A foreign value in place of the history is the trouble of this key alone: its lock and its event are written all the same.
        redis.pcall('XADD', history, 'MAXLEN', '~', ARGV[6], digits .. '-0', 'e', event)
    end
    redis.call('PEXPIRE', history, ARGV[7])
end

local required = ARGV[8] .. ARGV[#ARGV] .. ' '
if ARGV[8] ~= '' and redis.call('GETRANGE', KEYS[4], 0, #required - 1) ~= required then
    unlock()
    return redis.error_reply('EPOCHOVER this epoch is over')
end
if ARGV[1] ~= '' and math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then
    unlock()
    return {now, 0, ''}
end
-- One digit for each change: an answer of many numbers takes both sides longer.
local made, complete = {}, true
for i = 1, count do
    made[i] = holds(i) and '1' or '0'
    complete = complete and made[i] == '1'
end
if complete or ARGV[4] ~= '1' then
    for i = 1, count do
        if made[i] == '1' then
            write(i)
            log(i)
        end
    end
else
    for i = 1, count do made[i] = '0' end
end
flush()
if number then redis.call('SET', KEYS[3], string.format('%.0f', number)) end
unlock()
return {now, 1, table.concat(made)}
