-- The next entries of some streams, all as they are at one time.
-- KEYS: the streams. ARGV: 1 after which id; 2 how many of each.
local pages = {}
for i, stream in ipairs(KEYS) do
    pages[i] = redis.call('XRANGE', stream, '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
end
return pages
