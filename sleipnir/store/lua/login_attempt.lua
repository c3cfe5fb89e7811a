-- login_attempt: count an attempt to log in as a failure before the password is looked at, or take that back.
--
-- KEYS[1] of_user     HASH  slp:{access}:failed:user:<bucket>: failures, until_ms, last
-- KEYS[2] of_address  HASH  slp:{access}:failed:address:<bucket>: the same
-- ARGV[1] attempt            str  random, names the attempt
-- ARGV[2] passed             int  1: the attempt was no failure
-- ARGV[3] user_free          int  failures without a pause
-- ARGV[4] user_most_ms       int  the longest pause
-- ARGV[5] address_free       int
-- ARGV[6] address_most_ms    int
-- ARGV[7] keep_ms            int  after this time without an attempt the failures are forgotten
--
-- Returns  0  go on
--          n  a pause of so many ms is not over: the attempt is refused and does not count. Calling twice is safe.
local of_user, of_address = KEYS[1], KEYS[2]
local attempt, passed, user_free, user_most_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local address_free, address_most_ms, keep_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

if passed == 1 then
  redis.call('UNLINK', of_user)
  if redis.call('HGET', of_address, 'last') == attempt then
    redis.call('HINCRBY', of_address, 'failures', -1)
    redis.call('HDEL', of_address, 'last', 'until_ms')
  end
  return 0
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function pause_ms(key)
  if redis.call('HGET', key, 'last') == attempt then return 0 end
  return math.max(0, (tonumber(redis.call('HGET', key, 'until_ms')) or 0) - now_ms)
end
local wait_ms = math.max(pause_ms(of_user), pause_ms(of_address))
if wait_ms > 0 then return math.min(wait_ms, math.max(user_most_ms, address_most_ms)) end

local function count(key, free, most_ms)
  if redis.call('HGET', key, 'last') == attempt then return end
  local failures = redis.call('HINCRBY', key, 'failures', 1)
  local pause = failures > free and math.min(most_ms, 1000 * 2 ^ math.min(failures - free - 1, 30)) or 0
  redis.call('HSET', key, 'until_ms', string.format('%.0f', now_ms + pause), 'last', attempt)
  redis.call('PEXPIRE', key, keep_ms)
end
count(of_user, user_free, user_most_ms)
count(of_address, address_free, address_most_ms)
return 0
