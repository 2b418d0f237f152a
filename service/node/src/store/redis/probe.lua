-- Follows the script of commits, as the function `commit`: writes as a grant does, and removes in the same call what it wrote, so that no
-- client reads it. Returns what the commit returned. KEYS and ARGV are those of a commit of one new state with one event.
local answer = commit()
-- Otherwise the last event is that of another call.
if not answer.err and answer[3] == '1' then
    redis.call('XDEL', KEYS[2], redis.call('GET', KEYS[3]) .. '-0')
    redis.call('DEL', KEYS[5], KEYS[6])
    redis.call('ZREM', KEYS[1], ARGV[8])
end
return answer
