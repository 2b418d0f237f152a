-- If the store is filling: writes copied states, replacing existing ones, or removes states.
-- KEYS: the engine record; the index; the stream of events; the states, and what else of them is removed. The gate counts with the first
-- two alone.
-- ARGV: 1 how the record must begin; 2 how many states were copied in total, or '' to remove states; then for each state its address
-- and its value, or the entries of the index to remove; then the run id of this server, which must
-- follow the beginning of the record. A removal of no state removes the stream: with
-- a switch of engines, cursors begin anew.
local record = redis.call('GET', KEYS[1])
local required = ARGV[1] .. ARGV[#ARGV] .. ' '
if not record or string.sub(record, 1, #required) ~= required then return 0 end
local copied = tonumber(string.match(record, '^%a+ %d+ %S+ %S+ %d+ (%d+) '))
if ARGV[2] == '' then
    -- A request that is carried out late, or twice, removes no copied state.
    if copied > 0 then return 0 end
    if #ARGV == 3 then redis.call('DEL', KEYS[3]) end
    for i = 4, #KEYS do redis.call('DEL', KEYS[i]) end
    for i = 3, #ARGV - 1 do redis.call('ZREM', KEYS[2], ARGV[i]) end
    return 1
end
for i = 4, #KEYS do
    local at = 3 + (i - 4) * 2
    redis.call('SET', KEYS[i], ARGV[at + 1])
    redis.call('ZADD', KEYS[2], 0, ARGV[at])
end
if copied < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[1], (string.gsub(record, '^(%a+ %d+ %S+ %S+ %d+) %d+', '%1 ' .. ARGV[2], 1)))
end
return 1
