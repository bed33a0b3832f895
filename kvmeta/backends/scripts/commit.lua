-- Records what one source's writer did, if it still is its writer; all or nothing.
--
-- KEYS     record, labels: a hash each, of one source
-- ARGV     expected version ('' takes over whatever there is) | new version | record
--          | '1' to forget all labels first | number of labels to set
--          | label, value, label, value, ... | labels to drop
-- Returns  1, or 0 when the version is another one: nothing was changed then.
local STEP = 2000 -- arguments of one call: Lua's stack holds about 8,000
local expected, version, record = ARGV[1], ARGV[2], ARGV[3]
if expected ~= '' and redis.call('HGET', KEYS[1], 'version') ~= expected then return 0 end
if ARGV[4] == '1' then redis.call('UNLINK', KEYS[2]) end
local first, last = 6, 5 + 2 * tonumber(ARGV[5])
for at = first, last, STEP do
  redis.call('HSET', KEYS[2], unpack(ARGV, at, math.min(at + STEP - 1, last)))
end
for at = last + 1, #ARGV, STEP do
  redis.call('HDEL', KEYS[2], unpack(ARGV, at, math.min(at + STEP - 1, #ARGV)))
end
redis.call('HSET', KEYS[1], 'version', version, 'record', record)
return 1
