-- Return where a response is kept, false where nobody knows. KEYS: its key.
return redis.call('GET', KEYS[1])
