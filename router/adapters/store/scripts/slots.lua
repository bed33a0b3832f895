-- State what one has of instances' slots and wants of them, and take of it what nobody has.
-- KEYS: a hash of claims by process. ARGV: the process, lifetime of its claims in ms (0: it leaves), number
-- of the call, then for each instance: name, slots in all, kept, wanted, usable.
-- Returns the turn (seconds) and JSON: instance -> {share, {other process -> {share, usable}}}.
-- Empty JSON where a later call came first.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept, others = redis.call('HGETALL', KEYS[1]), {}
for place = 1, #kept, 2 do
  local process, claims = kept[place], cjson.decode(kept[place + 1])
  if process == ARGV[1] then
    if claims.call > tonumber(ARGV[3]) then
      return {time[1], '{}'}
    end
  elseif claims.ends <= now then
    redis.call('HDEL', KEYS[1], process)
  else
    others[process] = claims.of
  end
end

local mine, reply = {}, {}
for place = 4, #ARGV, 5 do
  local instance, total = ARGV[place], tonumber(ARGV[place + 1])
  local have, want = tonumber(ARGV[place + 2]), tonumber(ARGV[place + 3])
  local taken, told = have, {}
  for process, claims in pairs(others) do
    local claim = claims[instance]
    if claim then
      taken = taken + claim[1]
      told[process] = claim
    end
  end
  local share = have + math.max(0, math.min(want - have, total - taken))
  mine[instance] = {share, tonumber(ARGV[place + 4])}
  reply[instance] = {share, told}
end
if tonumber(ARGV[2]) <= 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {time[1], '{}'}
end
local claims = {ends = now + ARGV[2], call = tonumber(ARGV[3]), of = mine}
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(claims))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {time[1], cjson.encode(reply)}
