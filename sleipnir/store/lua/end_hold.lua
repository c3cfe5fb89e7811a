-- end_hold: end the hold of a namespace in one partition, after everything of it was resumed and all of its queued
-- visits were made due.
--
-- KEYS[1] holds  HASH  slp:{p07}:holds
-- ARGV[1] namespace  str
-- ARGV[2] at_ms      int  the time of the hold that is meant
--
-- Returns  1  ended
--          0  there is no such hold, or not everything of it was resumed: it was paused again. Calling twice is safe.
local holds, namespace, at_ms = KEYS[1], ARGV[1], ARGV[2]

local hold, text = unpack(redis.call('HMGET', holds, 'hold:' .. namespace, 'resumption:' .. namespace))
if not hold or not text then return 0 end
local is_hold, about = pcall(cjson.decode, hold)
if not is_hold or string.format('%.0f', tonumber(about.at_ms) or -1) ~= at_ms then return 0 end
local is_json, found = pcall(cjson.decode, text)
if not is_json or type(found) ~= 'table' or found.everything ~= true then return 0 end
redis.call('HDEL', holds, 'hold:' .. namespace, 'resumption:' .. namespace, 'count:' .. namespace, 'walked:' .. namespace)
return 1
