-- Write a document if it still has the version that the writer saw. KEYS: its hash, the records, the leader's
-- lease. ARGV: the version seen, the text, how many records to keep, the leader who writes and his term
-- ('' where anybody may), a record if there is one.
-- Returns 1, or 0 and writes nothing, or -1 where that leader leads no more.
if ARGV[4] ~= '' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local lease = redis.call('HMGET', KEYS[3], 'owner', 'term', 'ends')
  if lease[1] ~= ARGV[4] or lease[2] ~= ARGV[5] or tonumber(lease[3]) <= now then
    return -1
  end
end
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
if version ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1), 'text', ARGV[2])
if ARGV[6] then
  redis.call('LPUSH', KEYS[2], ARGV[6])
  redis.call('LTRIM', KEYS[2], 0, ARGV[3] - 1)
end
return 1
