-- Returns events of one key, the newest first, each as its number and its field: each event names the one of its key before it.
-- KEYS: the stream; the number of the key's last event. ARGV: 1 the number below which they are; 2 how many; 3 how many to look at; the
-- run id.
local found = {}
local number = redis.pcall('GET', KEYS[2])
for _ = 1, tonumber(ARGV[3]) do
    if type(number) ~= 'string' or not string.match(number, '^[1-9]%d*$') or #found >= tonumber(ARGV[2]) then break end
    -- The entry of an event has the number of the last one of several. An event that is not there has been trimmed.
    local entry = redis.call('XRANGE', KEYS[1], number, '+', 'COUNT', 1)[1]
    local before
    for i = 1, entry and #entry[2] or 0, 2 do
        local name = entry[2][i]
        if string.sub(name, 1, #number + 1) == number .. ' ' then
            before = string.sub(name, #number + 2)
            if tonumber(number) < tonumber(ARGV[1]) then found[#found + 1] = {number, entry[2][i + 1]} end
        end
    end
    number = before
end
return found
