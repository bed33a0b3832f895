-- Hands out slot numbers that were never used before, not even before a flush or a failover that
-- lost writes: they are at least the clock's microseconds, and
-- nobody needs one a microsecond.
--
-- KEYS[1]  the last number handed out; ARGV[1] how many are wanted. Returns the first of them.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local first = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', first + ARGV[1] - 1))
return first
