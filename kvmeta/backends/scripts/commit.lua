-- Records what one source's writer did, if it still is its writer; all or nothing.
--
-- KEYS     record, labels: a hash each, of one source
-- ARGV     expected version ('' takes over whatever there is) | new version | record
--          | '1' to forget all labels first | labels to set | labels to drop; the last two are
--          packed: label, value, label, value, ... and labels, each after its u32 length
-- Returns  1, or 0 when the version is another one: nothing was changed then.
local STEP = 2000 -- arguments of one call: Lua's stack holds about 8,000
local expected, version, record = ARGV[1], ARGV[2], ARGV[3]
if expected ~= '' and redis.call('HGET', KEYS[1], 'version') ~= expected then return 0 end
if ARGV[4] == '1' then redis.call('UNLINK', KEYS[2]) end

local function split(text)
  local items, at = {}, 1
  while at <= #text do
    local length = struct.unpack('<I4', string.sub(text, at, at + 3))
    local stop = at + 3 + length
    items[#items + 1] = string.sub(text, at + 4, stop)
    at = stop + 1
  end
  return items
end

for command, list in pairs({ HSET = split(ARGV[5]), HDEL = split(ARGV[6]) }) do
  for at = 1, #list, STEP do
    redis.call(command, KEYS[2], unpack(list, at, math.min(at + STEP - 1, #list)))
  end
end
redis.call('HSET', KEYS[1], 'version', version, 'record', record)
return 1
