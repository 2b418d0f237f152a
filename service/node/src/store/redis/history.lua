-- Returns events of one key, the newest first, each as its number and its field: each event names the one of its key before it.
-- KEYS: the stream; the number of the key's last event. ARGV: 1 the number of an event of the key, to begin with the one before it, or '';
-- 2 how many; 3 the address; the run id.
-- As many digits as Lua's numbers have.
local DIGITS_MAX = 16
local found = {}
local number = ARGV[1]
local is_cursor = number ~= ''
if not is_cursor then number = redis.pcall('GET', KEYS[2]) end
while type(number) == 'string' and #number <= DIGITS_MAX and string.find(number, '^[1-9]%d*$') and #found < tonumber(ARGV[2]) do
    -- The entry of an event has the number of the last one of several. An event that is not there has been trimmed.
    local entry = redis.call('XRANGE', KEYS[1], number, '+', 'COUNT', 1)[1]
    local fields, before = entry and entry[2] or {}, nil
    for i = 3, #fields, 2 do
        local is_own = fields[i] == number and string.sub(fields[i + 1], 1, #ARGV[3] + 1) == ARGV[3] .. '\0'
        if is_own and fields[1] == '0' then
            local links = string.gmatch(fields[2], '%d+')
            for _ = 3, i, 2 do before = links() end
            if not is_cursor then found[#found + 1] = {number, fields[i + 1]} end
        end
    end
    -- Of what another program has written, the chain may lead back.
    if before and tonumber(before) >= tonumber(number) then before = nil end
    number, is_cursor = before, false
end
return found
