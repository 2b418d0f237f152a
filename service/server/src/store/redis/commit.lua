-- Writes the changes whose expected version is the current one (or all, or none), logs their events, and unlocks states.
--
-- KEYS without a cluster: the index, the stream of events, the stream of renewals, the number of the last event, the engine
-- record; then for each change its state and its history. In a cluster, where all keys of a call are in one slot: for each
-- change its state, its history, its renewals, and the number of its last event. In both cases, then the states to unlock.
-- ARGV: 1 the caller's clock in ms, or '' for no check; 2 how far it may be off; 3 the number of changes; 4 whether there is
-- no cluster; 5 whether to write all or none; 6 the locker whose own locks do not count; 7, 8 the length of a history, and how
-- long it is kept, in ms; 9, 10 the same for renewals; 11 how long any state is kept at least, in ms; 12 how the engine record
-- must begin, or ''. Then for each change: its address; the expected version, or '' to log events only; the new value; until
-- when it is kept; when it is due, or '-'; the number of events; the events.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, shared, own = tonumber(ARGV[3]), ARGV[4] == '1', ARGV[6]
local first, width = shared and 5 or 0, shared and 2 or 4

local changes, at = {}, 13
for i = 1, count do
    local keys = first + (i - 1) * width
    changes[i] = {
        state = KEYS[keys + 1], history = KEYS[keys + 2],
        renewed = shared and KEYS[3] or KEYS[keys + 3], counter = shared and KEYS[4] or KEYS[keys + 4],
        address = ARGV[at], expected = ARGV[at + 1], value = ARGV[at + 2], keep = ARGV[at + 3], notice = ARGV[at + 4],
        event_count = tonumber(ARGV[at + 5]), events = at + 6,
    }
    at = at + 6 + changes[i].event_count
end

local function unlock()
    for i = first + count * width + 1, #KEYS do
        local value = redis.pcall('GET', KEYS[i])
        if type(value) == 'string' and string.match(value, '^%d+ %d+ %S+ %d+:(%S*) ') == own then
            value = string.gsub(value, '^(%d+ %d+ %S+) %S+', '%1 0:', 1)
            redis.call('SET', KEYS[i], value, 'KEEPTTL')
        end
    end
end

-- Only the part before the state: Lua hashes every byte of a string that it is given.
local HEAD_MAX = 128
local function holds(change)
    if change.expected == '' then return true end
    local value = redis.pcall('GETRANGE', change.state, 0, HEAD_MAX - 1)
    -- Another program has written something else than a string. The other changes do not fail for it.
    if type(value) == 'table' then return false end
    if value == '' then return change.expected == '0' end
    local version, locked_until, locked_by = string.match(value, '^(%d+) %d+ %S+ (%d+):(%S*) ')
    return version == change.expected and (locked_by == own or tonumber(locked_until) <= now)
end

local function write(change)
    if change.expected == '' then return end
    if change.notice ~= '-' then
        redis.call('SET', change.state, change.value)
    else
        local keep = math.max(tonumber(change.keep), now + tonumber(ARGV[11]))
        redis.call('SET', change.state, change.value, 'PXAT', string.format('%.0f', keep))
    end
    if shared and change.expected == '0' then redis.call('ZADD', KEYS[1], 0, change.address) end
end

-- The streams that all locks share get one entry for many events: its id has the number of the last one, and its fields are the
-- numbers, with the address and the event as their values.
local PACKED_MAX = 32
local packed = {}
local function flush(stream)
    local fields = packed[stream]
    if fields and #fields > 0 then
        redis.call('XADD', stream, fields[#fields - 1] .. '-0', unpack(fields))
        packed[stream] = {}
    end
end
local function pack(stream, number, address, event)
    local fields = packed[stream] or {}
    packed[stream] = fields
    fields[#fields + 1] = number
    fields[#fields + 1] = address .. '\0' .. event
    if #fields >= 2 * PACKED_MAX then flush(stream) end
end

local numbers = {}
local function log(change)
    if change.event_count == 0 then return end
    local number = numbers[change.counter] or tonumber(redis.call('GET', change.counter) or 0)
    number = math.max(number, now * 1024)
    for i = change.events, change.events + change.event_count - 1 do
        number = number + 1
        local digits, event = string.format('%.0f', number), ARGV[i]
        local id = digits .. '-0'
        local renewed = string.sub(event, 1, 8) == 'renewed '
        if shared then
            pack(renewed and KEYS[3] or KEYS[2], digits, change.address, event)
        elseif renewed then
            redis.call('XADD', change.renewed, 'MAXLEN', '~', ARGV[9], id, 'e', event)
            redis.call('PEXPIRE', change.renewed, ARGV[10])
        end
        if not renewed then
            redis.call('XADD', change.history, 'MAXLEN', '~', ARGV[7], id, 'e', event)
            redis.call('PEXPIRE', change.history, ARGV[8])
        end
    end
    numbers[change.counter] = number
end

if ARGV[12] ~= '' then
    local record = redis.call('GET', KEYS[5])
    if not record or string.sub(record, 1, #ARGV[12]) ~= ARGV[12] then
        unlock()
        return redis.error_reply('EPOCHOVER this epoch is over')
    end
end
if ARGV[1] ~= '' and math.abs(now - ARGV[1]) > tonumber(ARGV[2]) then
    unlock()
    return {now, 0, ''}
end
-- One digit for each change: an answer of many numbers takes both sides longer.
local made, complete = {}, true
for i, change in ipairs(changes) do
    made[i] = holds(change) and '1' or '0'
    complete = complete and made[i] == '1'
end
if complete or ARGV[5] ~= '1' then
    for i, change in ipairs(changes) do
        if made[i] == '1' then
            write(change)
            log(change)
        end
    end
else
    for i = 1, count do made[i] = '0' end
end
for stream in pairs(packed) do flush(stream) end
for counter, number in pairs(numbers) do
    if shared then
        redis.call('SET', counter, string.format('%.0f', number))
    else
        redis.call('SET', counter, string.format('%.0f', number), 'PX', ARGV[8])
    end
end
unlock()
return {now, 1, table.concat(made)}
