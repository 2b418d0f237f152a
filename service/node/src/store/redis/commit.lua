-- Writes the changes whose expected version is the current one (or all, or none), logs their events, and unlocks states.
--
-- KEYS: the index, the stream of events, the number of the last event, the engine record; then for each change its state and the number
-- of its key's last event; then the states to unlock.
-- ARGV: 1 the caller's clock in ms, or '' for no check; 2 how far it may be off; 3 the number of changes; 4 whether to write all
-- or none; 5 the locker whose own locks do not count; 6 how long a history is kept, in ms; 7 how the engine record must begin, before
-- the run id of this server, or ''. Then for each change: its address; the expected version, or '' to
-- log events only; the new value; the number of events; the events.
-- The last one is the run id of this server.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, own = tonumber(ARGV[3]), ARGV[5]
local SHARED = 4

-- Where the arguments of each change begin. A table for each would take longer.
local begins, at = {}, 8
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

local required = ARGV[7] .. ARGV[#ARGV] .. ' '
if ARGV[7] ~= '' and redis.call('GETRANGE', KEYS[4], 0, #required - 1) ~= required then
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
if not complete and ARGV[4] == '1' then
    for i = 1, count do made[i] = '0' end
end

-- As many digits as Lua's numbers have.
local DIGITS_MAX = 16
-- The more events an entry has, the less it takes to write them, and the more to read the history of one key.
local PACKED_MAX = 8
local number
-- Writes those of a group of changes that are made. One command for many keys takes less time than one for each.
--
-- The stream gets one entry for several events: its id has the number of the last one. Its first field, `0`, has for each event the number
-- of the event before it of the same key, by which a history is followed. (Nodes of the version before take it for an event before all
-- others.) Then there is a field for each: its number, with the address and the event as the value.
local function write(first, last)
    local new, logged = {}, {}
    for i = first, last do
        local at = begins[i]
        if made[i] == '1' and ARGV[at + 1] == '0' then
            new[#new + 1] = 0
            new[#new + 1] = ARGV[at]
        end
        if made[i] == '1' and ARGV[at + 3] ~= '0' then logged[#logged + 1] = KEYS[SHARED + i * 2] end
    end
    -- What may fail comes first. An entry of the index without a state does no harm.
    if #new > 0 then redis.call('ZADD', KEYS[1], unpack(new)) end
    -- The last event of each key by its name: there may be several events of one key without a change.
    local before = {}
    for place, found in ipairs(#logged > 0 and redis.call('MGET', unpack(logged)) or {}) do
        -- Another program may have written something else.
        local is_number = found and #found <= DIGITS_MAX and string.find(found, '^%d+$')
        before[logged[place]] = is_number and found or '0'
    end
    local values, without_change, links, fields = {}, {}, {}, {}
    local function add_entry()
        redis.call('XADD', KEYS[2], string.format('%.0f-0', number), '0', table.concat(links, ' '), unpack(fields))
        links, fields = {}, {}
    end
    for i = first, last do
        local at, event_count = begins[i], tonumber(ARGV[begins[i] + 3])
        if made[i] == '1' and ARGV[at + 1] ~= '' then
            values[#values + 1] = KEYS[SHARED + i * 2 - 1]
            values[#values + 1] = ARGV[at + 2]
        end
        if made[i] == '1' and event_count > 0 then
            number = number or math.max(tonumber(redis.call('GET', KEYS[3]) or 0), now * 1024)
            local key = KEYS[SHARED + i * 2]
            for event = at + 4, at + 3 + event_count do
                number = number + 1
                links[#links + 1] = before[key]
                before[key] = string.format('%.0f', number)
                fields[#fields + 1] = before[key]
                fields[#fields + 1] = ARGV[at] .. '\0' .. ARGV[event]
                if #links >= PACKED_MAX then add_entry() end
            end
            values[#values + 1] = key
            values[#values + 1] = before[key]
            if ARGV[at + 1] == '' then without_change[#without_change + 1] = key end
        end
    end
    if #links > 0 then add_entry() end
    if number then
        values[#values + 1] = KEYS[3]
        values[#values + 1] = string.format('%.0f', number)
    end
    if #values > 0 then redis.call('MSET', unpack(values)) end
    -- Without a change there may be no state, with which collect.lua would end it.
    for _, key in ipairs(without_change) do redis.call('PEXPIRE', key, ARGV[6]) end
end
local GROUP = 256
for first = 1, count, GROUP do write(first, math.min(first + GROUP - 1, count)) end
unlock()
return {now, 1, table.concat(made)}
