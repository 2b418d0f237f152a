-- Returns the next entries of a stream. An entry has one event or several, one in each field but the first: see commit.lua. Those of the
-- version before have no such first field.
-- KEYS: the stream. ARGV: 1 the id before the first entry; 2 how many events are enough, besides those of the first entry: they may
-- all be from before the reader's position.
local STEP = 16
local enough = tonumber(ARGV[2])
local page, after, events, count = {}, ARGV[1], 0, 0
repeat
    count = math.min(STEP, enough - events)
    local entries = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', count)
    for _, entry in ipairs(entries) do
        page[#page + 1] = entry
        after = entry[1]
        if #page > 1 then events = events + #entry[2] / 2 - (entry[2][1] == '0' and 1 or 0) end
    end
until #entries < count or events >= enough
return page
