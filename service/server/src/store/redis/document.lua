-- Replaces a document if its version is still the one that was read.
-- KEYS: the document; with a fence, the engine record. ARGV: 1 the version that was read, '0' for no document; 2 the new version; 3 the
-- new text; 4 how the record must begin. Answers 2 if it does not.
if KEYS[2] then
    local record = redis.call('GET', KEYS[2])
    if not record or string.sub(record, 1, #ARGV[4]) ~= ARGV[4] then return 2 end
end
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'text', ARGV[3])
return 1
