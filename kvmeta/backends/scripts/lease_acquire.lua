-- Take a lease that is free, or take one's own again. KEYS: the lease, its fence.
-- ARGV: owner, lifetime of the lease in ms, lifetime of the fence in ms.
-- Returns the fencing token, higher than every one before; 0 while another owner has the lease.
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^(.*) %d+$') ~= ARGV[1] then
  return 0
end
local token = redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token, 'PX', ARGV[2])
return token
