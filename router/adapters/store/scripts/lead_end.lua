-- Give the leader's lease back; the number of the term stays. KEYS: its hash. ARGV: the process, its term.
local kept = redis.call('HMGET', KEYS[1], 'owner', 'term')
if kept[1] == ARGV[1] and kept[2] == ARGV[2] then
  redis.call('HSET', KEYS[1], 'ends', '0')
end
return 0
