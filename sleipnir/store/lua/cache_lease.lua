-- cache_lease: renew or release the lease to make the result of a key.
--
-- KEYS[1] lease     STRING  slp:{c<node>}:cache:lease:<digest>
-- ARGV[1] token     str     identifies the execution of the caller
-- ARGV[2] lease_ms  int     the duration of the lease without another call; 0 releases it
--
-- Returns  1  done
--          0  the lease has lapsed, or is another one's; nothing changed. Calling twice is safe.
local lease = KEYS[1]
local token, lease_ms = ARGV[1], tonumber(ARGV[2])

if redis.call('GET', lease) ~= token then return 0 end
if lease_ms == 0 then
  redis.call('DEL', lease)
else
  redis.call('PEXPIRE', lease, lease_ms)
end
return 1
