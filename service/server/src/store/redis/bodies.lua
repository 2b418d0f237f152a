-- The clock, and the values of operations without their payloads: a value has the length of its body before that.
local bodies = {}
for i, key in ipairs(KEYS) do
    local value = redis.pcall('GET', key)
    if type(value) == 'table' then value = value.err end
    local head, length = string.match(value or '', '^(%S+ %S+ %S+ %S+ (%d+) )')
    bodies[i] = head and string.sub(value, 1, #head + tonumber(length)) or value
end
return {redis.call('TIME'), bodies}
