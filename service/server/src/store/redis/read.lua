-- Returns the next entries of several streams, all read at the same moment.
-- KEYS: the streams. ARGV: 1 the id before the first entry; 2 the most entries of each stream.
local pages = {}
for i, stream in ipairs(KEYS) do
    pages[i] = redis.call('XRANGE', stream, '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
end
return pages
