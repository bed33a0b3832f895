-- Renew the leader's lease, or take it where nobody has it. KEYS: its hash.
-- ARGV: the process, its name for people, the term that it has (0: none), the lease in ms, the highest term
-- that it heard of.
-- Returns whether it leads, and the leader's name, term, begin (ms) and how many ms are left.
-- A term is the time in ms where that is more than one after the last: so it rises even where the last was
-- lost with the store.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'owner', 'term', 'ends', 'name', 'since')
local term, ends = tonumber(kept[2] or 0), tonumber(kept[3] or 0)
if ends > now and kept[1] ~= ARGV[1] then
  return {0, kept[4], kept[2], kept[5], ends - now}
end
if ends > now and term == tonumber(ARGV[3]) then
  redis.call('HSET', KEYS[1], 'ends', string.format('%.0f', now + ARGV[4]))
  return {1, kept[4], kept[2], kept[5], tonumber(ARGV[4])}
end
local new = string.format('%.0f', math.max(term + 1, ARGV[5] + 1, now))
local since = string.format('%.0f', now)
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'name', ARGV[2], 'term', new, 'since', since,
  'ends', string.format('%.0f', now + ARGV[4]))
return {1, ARGV[2], new, since, tonumber(ARGV[4])}
