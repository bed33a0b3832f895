-- Sets and clears slots' bits in pages (docs/kvmeta-schema.md has the layout).
--
-- KEYS     page, overflow, page, overflow, ...; the two of a page share a cluster slot
-- ARGV[1]  the entries a page holds at most; the rest goes to its overflow hash
-- ARGV[i]  for page i - 1, any number of: slot (7) | u16 sets | u16 clears | entries (8 each)
--
-- Every operation states how things shall be, so running it again changes nothing.
local ENTRY, SLOT = 8, 7
local limit = tonumber(ARGV[1])

local function read16(text, at)
  local low, high = string.byte(text, at, at + 1)
  return low + high * 256
end

local function write16(number)
  return string.char(number % 256, math.floor(number / 256))
end

local function find_slot(slots, slot)
  local at = string.find(slots, slot, 1, true)
  while at and (at - 1) % SLOT ~= 0 do
    at = string.find(slots, slot, at + 1, true)
  end
  return at
end

local function parse(blob)
  local page = { over = false, count = 0, entries = {}, index = {}, groups = {} }
  if not blob then return page end
  page.over = string.byte(blob, 1) == 1
  page.count = read16(blob, 2)
  for i = 1, page.count do
    local entry = string.sub(blob, 4 + (i - 1) * ENTRY, 3 + i * ENTRY)
    page.entries[i] = entry
    page.index[entry] = i
  end
  local at, width = 4 + page.count * ENTRY, math.ceil(page.count / 8)
  while at <= #blob do
    local stop = at + 1 + read16(blob, at) * SLOT
    -- Without trailing zero bytes, equal bits are equal strings whatever the page's size.
    local bits = string.gsub(string.sub(blob, stop + 1, stop + width), '%z+$', '')
    page.groups[#page.groups + 1] = { slots = string.sub(blob, at + 2, stop), bits = bits }
    at = stop + width + 1
  end
  return page
end

-- Takes the slot out of its group and returns its bits as a list of bytes.
local function take(page, slot)
  for i, group in ipairs(page.groups) do
    local at = find_slot(group.slots, slot)
    if at then
      group.slots = string.sub(group.slots, 1, at - 1) .. string.sub(group.slots, at + SLOT)
      if group.slots == '' then table.remove(page.groups, i) end
      return { string.byte(group.bits, 1, -1) }
    end
  end
  return {}
end

local function put(page, slot, bytes)
  local last = 0
  for i = 1, math.ceil(page.count / 8) do
    bytes[i] = bytes[i] or 0
    if bytes[i] ~= 0 then last = i end
  end
  if last == 0 then return end
  local bits = string.char(unpack(bytes, 1, last))
  for _, group in ipairs(page.groups) do
    if group.bits == bits then
      group.slots = group.slots .. slot
      return
    end
  end
  page.groups[#page.groups + 1] = { slots = slot, bits = bits }
end

local function set_over(page, overflow, entry, slot)
  local slots = redis.call('HGET', overflow, entry) or ''
  if not find_slot(slots, slot) then redis.call('HSET', overflow, entry, slots .. slot) end
  page.over = true
end

local function clear_over(page, overflow, entry, slot)
  local slots = redis.call('HGET', overflow, entry)
  local at = slots and find_slot(slots, slot)
  if not at then return end
  slots = string.sub(slots, 1, at - 1) .. string.sub(slots, at + SLOT)
  if slots ~= '' then
    redis.call('HSET', overflow, entry, slots)
  else
    redis.call('HDEL', overflow, entry)
    page.over = redis.call('EXISTS', overflow) == 1
  end
end

local function position(page, overflow, entry)
  local at = page.index[entry]
  if at or page.count >= limit then return at end
  if page.over and redis.call('HEXISTS', overflow, entry) == 1 then return nil end
  at = page.count + 1
  page.count, page.entries[at], page.index[entry] = at, entry, at
  return at
end

local function apply(page, overflow, ops)
  local at = 1
  while at <= #ops do
    local slot = string.sub(ops, at, at + SLOT - 1)
    local sets, clears = read16(ops, at + SLOT), read16(ops, at + SLOT + 2)
    local bytes = take(page, slot)
    at = at + SLOT + 4
    for i = 1, sets + clears do
      local entry = string.sub(ops, at, at + ENTRY - 1)
      at = at + ENTRY
      if i <= sets then
        local where = position(page, overflow, entry)
        if where then
          local byte = math.floor((where - 1) / 8) + 1
          for fill = #bytes + 1, byte do bytes[fill] = 0 end
          bytes[byte] = bit.bor(bytes[byte], bit.lshift(1, (where - 1) % 8))
        else
          set_over(page, overflow, entry, slot)
        end
      elseif page.index[entry] then
        local where = page.index[entry]
        local byte = math.floor((where - 1) / 8) + 1
        if bytes[byte] then
          bytes[byte] = bit.band(bytes[byte], bit.bnot(bit.lshift(1, (where - 1) % 8)))
        end
      elseif page.over then
        clear_over(page, overflow, entry, slot)
      end
    end
    put(page, slot, bytes)
  end
end

-- Leaves out the entries that nobody holds; their places are given to those after them.
local function compact(page)
  local used = {}
  for _, group in ipairs(page.groups) do
    for i = 1, #group.bits do
      used[i] = bit.bor(used[i] or 0, string.byte(group.bits, i))
    end
  end
  local kept, from = {}, {}
  for i = 1, page.count do
    if bit.band(used[math.floor((i - 1) / 8) + 1] or 0, bit.lshift(1, (i - 1) % 8)) ~= 0 then
      kept[#kept + 1], from[#from + 1] = page.entries[i], i - 1
    end
  end
  if #kept == page.count then return end
  for _, group in ipairs(page.groups) do
    local bytes = {}
    for i = 1, math.ceil(#kept / 8) do bytes[i] = 0 end
    for i, old in ipairs(from) do
      local byte = string.byte(group.bits, math.floor(old / 8) + 1) or 0
      if bit.band(byte, bit.lshift(1, old % 8)) ~= 0 then
        local new = math.floor((i - 1) / 8) + 1
        bytes[new] = bit.bor(bytes[new], bit.lshift(1, (i - 1) % 8))
      end
    end
    group.bits = string.char(unpack(bytes))
  end
  page.count, page.entries = #kept, kept
end

local function render(page)
  local width = math.ceil(page.count / 8)
  local parts = { string.char(page.over and 1 or 0), write16(page.count) }
  for i = 1, page.count do parts[#parts + 1] = page.entries[i] end
  for _, group in ipairs(page.groups) do
    parts[#parts + 1] = write16(#group.slots / SLOT)
    parts[#parts + 1] = group.slots
    parts[#parts + 1] = string.sub(group.bits .. string.rep('\0', width), 1, width)
  end
  return table.concat(parts)
end

-- The commonest write: a chain that is new to everybody, stored by one slot.
local function fresh(ops)
  local sets, clears = read16(ops, SLOT + 1), read16(ops, SLOT + 3)
  if sets == 0 or sets > limit or clears > 0 or #ops ~= SLOT + 4 + sets * ENTRY then return nil end
  local bits = string.rep('\255', math.floor(sets / 8))
  if sets % 8 > 0 then bits = bits .. string.char(2 ^ (sets % 8) - 1) end
  return table.concat({
    '\0', write16(sets), string.sub(ops, SLOT + 5), write16(1), string.sub(ops, 1, SLOT), bits,
  })
end

for i = 1, #KEYS, 2 do
  local key, overflow, ops = KEYS[i], KEYS[i + 1], ARGV[(i + 1) / 2 + 1]
  local blob = redis.call('GET', key)
  -- An overflow without its page (evicted) is invisible to readers: no more than a miss.
  if not blob then redis.call('UNLINK', overflow) end
  local new = not blob and fresh(ops)
  if not new then
    local page = parse(blob)
    apply(page, overflow, ops)
    compact(page)
    new = (page.count > 0 or page.over) and render(page)
  end
  if not new then
    redis.call('DEL', key)
  elseif new ~= blob then
    redis.call('SET', key, new)
  end
end
return #KEYS / 2
