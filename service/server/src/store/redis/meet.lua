-- Enters what a node says of itself. Answers the nodes, what they say, and how many ms ago they said it.
-- KEYS: the hash of the nodes. ARGV: 1 the node; 2 what it says; 3 after how many ms a node is not listed any more.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2])
local nodes = redis.call('HGETALL', KEYS[1])
local answer = {}
for i = 1, #nodes, 2 do
    local at, says = string.match(nodes[i + 1], '^(%d+) (.*)$')
    local age = now - at
    if age > tonumber(ARGV[3]) then
        redis.call('HDEL', KEYS[1], nodes[i])
    elseif #answer < 3000 then
        answer[#answer + 1] = nodes[i]
        answer[#answer + 1] = says
        answer[#answer + 1] = string.format('%.0f', math.max(age, 0))
    end
end
return answer
