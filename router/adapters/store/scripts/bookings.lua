-- State what one holds of links' bytes, and take more where nobody's limit forbids it.
-- KEYS: a hash of holdings by process. ARGV: the process, lifetime of what it holds in ms (0: it leaves),
-- number of the call, JSON: link -> {held, limit}, JSON: for each ask link -> bytes.
-- Returns whether each ask was granted (1 or 0), and JSON: link -> bytes that others hold. No JSON where a
-- later call came first.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine, asks = cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
local others, limits = {}, {}
for link, each in pairs(mine) do
  others[link], limits[link] = 0, each[2]
end

local kept = redis.call('HGETALL', KEYS[1])
for place = 1, #kept, 2 do
  local process, told = kept[place], cjson.decode(kept[place + 1])
  if process == ARGV[1] then
    if told.call > tonumber(ARGV[3]) then
      return {{}, ''}
    end
  elseif told.ends <= now then
    redis.call('HDEL', KEYS[1], process)
  else
    for link, each in pairs(told.of) do
      if others[link] then
        others[link] = others[link] + each[1]
        limits[link] = math.min(limits[link], each[2])
      end
    end
  end
end
if tonumber(ARGV[2]) <= 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {{}, '{}'}
end

local granted = {}
for place, ask in ipairs(asks) do
  local fits = 1
  for link, size in pairs(ask) do
    if mine[link][1] + others[link] + size > limits[link] then
      fits = 0
    end
  end
  if fits == 1 then
    for link, size in pairs(ask) do
      mine[link][1] = mine[link][1] + size
    end
  end
  granted[place] = fits
end
if next(mine) then
  local told = {ends = now + ARGV[2], call = tonumber(ARGV[3]), of = mine}
  redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(told))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return {granted, cjson.encode(others)}
