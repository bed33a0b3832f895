-- Tell how busy one is, and hear of the others. KEYS: a hash of reports by process.
-- ARGV: the process, for how many ms its report counts, the report ('' to be forgotten).
-- Returns the other processes' reports that still count.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now + ARGV[2], ARGV[3]))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local heard, told = {}, redis.call('HGETALL', KEYS[1])
for place = 1, #told, 2 do
  local until_, report = string.match(told[place + 1], '^(%d+) (.*)$')
  if tonumber(until_) <= now then
    redis.call('HDEL', KEYS[1], told[place])
  elseif told[place] ~= ARGV[1] then
    heard[#heard + 1] = report
  end
end
return heard
