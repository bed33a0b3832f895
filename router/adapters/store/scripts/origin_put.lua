-- Remember where a response is kept. KEYS: its key. ARGV: instance and model, lifetime in ms.
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
