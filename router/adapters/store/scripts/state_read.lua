-- Read a document. KEYS: its hash. Returns version and text, false where there is none.
return redis.call('HMGET', KEYS[1], 'version', 'text')
