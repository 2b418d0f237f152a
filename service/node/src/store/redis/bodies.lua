-- The clock, and the values of operations without their payloads: a value has the length of its body before that.
local bodies = {}
for i, key in ipairs(KEYS) do
    local value = redis.pcall('GETRANGE', key, 0, 127)
    if type(value) == 'table' then value = value.err end
    local head, length = string.match(value, '^(%S+ %S+ %S+ %S+ (%d+) )')
    if head then value = redis.call('GETRANGE', key, 0, #head + tonumber(length) - 1) end
    bodies[i] = value ~= '' and value
end
return {redis.call('TIME'), bodies}
