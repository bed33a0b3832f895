-- Give back what is held no more, and extend the lease of what is. KEYS: a sorted set of holds.
-- ARGV: lifetime in ms, how many to give back, their names, then the names of those kept.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = 2 + tonumber(ARGV[2])
for place = 3, last do
  redis.call('ZREM', KEYS[1], ARGV[place])
end
for place = last + 1, #ARGV do
  redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if #ARGV > last then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return #ARGV - last
