-- Write a document if it still has the version that the writer saw. KEYS: its hash, the records.
-- ARGV: the version seen, the text, how many records to keep, a record if there is one.
-- Returns 1, or 0 and writes nothing.
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
if version ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1), 'text', ARGV[2])
if ARGV[4] then
  redis.call('LPUSH', KEYS[2], ARGV[4])
  redis.call('LTRIM', KEYS[2], 0, ARGV[3] - 1)
end
return 1
