-- Charge one request to its tenant, and let it run: all of it, or nothing.
-- KEYS: the tenant's buckets, its running requests.
-- ARGV: limits of requests at once, requests and tokens a minute (-1: none), prompt tokens,
--       name of the running request, lifetime of its lease in ms.
-- Returns the limit that refuses it (0 none, 1 at once, 2 requests, 3 tokens), how many run, and what
-- is owed to each bucket now. Buckets are `router/control/limits.py`'s, by the server's clock.
local PERIOD = 60000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local at_once, requests, tokens = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local size = tonumber(ARGV[4])

local function owed(rate, limit)
  local kept = limit >= 0 and redis.call('HGET', KEYS[1], rate)
  if not kept then
    return 0
  end
  local amount, at = string.match(kept, '^(%d+) (%d+)$')
  return math.max(0, amount - limit * math.max(0, now - at))
end

local function lacks(limit, owes, units)
  return limit >= 0 and owes + (units - limit) * PERIOD > 0
end

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now / 1000)
local running = redis.call('ZCARD', KEYS[2])
local by_request, by_token = owed('requests', requests), owed('tokens', tokens)

local refused = 0
if at_once >= 0 and running >= at_once and not redis.call('ZSCORE', KEYS[2], ARGV[5]) then
  refused = 1
elseif lacks(requests, by_request, 1) then
  refused = 2
elseif lacks(tokens, by_token, size) then
  refused = 3
end
if refused > 0 then
  return {refused, running, by_request, by_token}
end

if at_once >= 0 then
  redis.call('ZADD', KEYS[2], now / 1000 + ARGV[6], ARGV[5])
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end
local longest = 0
local function keep(rate, limit, owes)
  if limit >= 0 then
    redis.call('HSET', KEYS[1], rate, string.format('%.0f %.0f', owes, now))
    longest = math.max(longest, owes / limit / 1000)
  end
end
if requests >= 0 then by_request = by_request + PERIOD end
if tokens >= 0 then by_token = by_token + size * PERIOD end
keep('requests', requests, by_request)
keep('tokens', tokens, by_token)
if longest > 0 then
  redis.call('PEXPIRE', KEYS[1], math.ceil(longest) + 1000)
end
return {0, running, by_request, by_token}
