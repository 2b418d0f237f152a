-- Replaces a document if its version is still the one that was read.
-- KEYS: the document; with a fence, the engine record. ARGV: 1 the version that was read, '0' for no document; 2 the new version; 3 the
-- new text; 4 how the record must begin, before 5, the run id of this server.
if KEYS[2] then
    local required = ARGV[4] .. ARGV[5] .. ' '
    if redis.call('GETRANGE', KEYS[2], 0, #required - 1) ~= required then
        return redis.error_reply('EPOCHOVER this epoch is over')
    end
end
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'text', ARGV[3])
return 1
