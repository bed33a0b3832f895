-- Extend a lease that is still the asker's. KEYS: the lease, its fence.
-- ARGV: owner and token as stored, lifetime of the lease in ms, lifetime of the fence in ms.
-- Returns 1, or 0 if it is not the asker's any more.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
