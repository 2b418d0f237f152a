-- Returns the next entries of several streams, all read at the same moment. An entry has one event or several, one in each field.
-- KEYS: the streams. ARGV: 1 the id before the first entry; 2 how many events of each stream are enough, besides those of its first
-- entry: they may all be from before the reader's position.
local STEP = 16
local enough = tonumber(ARGV[2])

local function read(stream)
    local page, after, events, count = {}, ARGV[1], 0, 0
    repeat
        count = math.min(STEP, enough - events)
        local entries = redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', count)
        for _, entry in ipairs(entries) do
            page[#page + 1] = entry
            after = entry[1]
            if #page > 1 then events = events + #entry[2] / 2 end
        end
    until #entries < count or events >= enough
    return page
end

local pages = {}
for i, stream in ipairs(KEYS) do
    pages[i] = read(stream)
end
return pages
