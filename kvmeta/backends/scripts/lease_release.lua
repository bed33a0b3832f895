-- Give a lease up if it is still the asker's. KEYS: the lease. ARGV: owner and token as stored.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
