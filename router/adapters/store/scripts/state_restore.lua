-- Write a version back that was lost, and read. KEYS: the document's hash. ARGV: version, text.
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
if version < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'text', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'version', 'text')
