-- change_access: change one record of a user, a token, a webhook or a login, if it is as it was read, and write the audit entry.
--
-- KEYS[1] records  HASH    slp:{access}:users, ...:tokens, ...:webhooks, ...:logins:<user> and others
-- KEYS[2] users    HASH    slp:{access}:users
-- KEYS[3] logins   HASH    slp:{access}:logins:<user>
-- KEYS[4] audit    STREAM  slp:{access}:audit
-- ARGV[1] name       str   field of `records`
-- ARGV[2] before     str   its text as the caller has read it; '' for none
-- ARGV[3] after      str   its new text, which no earlier one equals; '' removes it
-- ARGV[4] user       str   whose record must still be `user_text`; '' compares nothing
-- ARGV[5] user_text  str
-- ARGV[6] revoke     int   1: all logins of the user end
-- ARGV[7] ttl_ms     int   `records` dies after this time; 0: never
-- ARGV[8] entry      JSON  access/audit.py; opaque here; '' for none
-- ARGV[9] keep_ms    int   how long entries are kept
--
-- Returns  1  changed, now or by an earlier call
--          0  a record is not as it was read: nothing changed. Calling twice is safe.
-- shared: audit
local records, users, logins, audit = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, before, after, user, user_text = unpack(ARGV, 1, 5)
local revoke, ttl_ms, entry = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local keep_ms = tonumber(ARGV[9])

local now = redis.call('HGET', records, name) or ''
if now == after then return 1 end
if now ~= before then return 0 end
if user ~= '' and (redis.call('HGET', users, user) or '') ~= user_text then return 0 end

if revoke == 1 then redis.call('UNLINK', logins) end
if after == '' then
  redis.call('HDEL', records, name)
else
  redis.call('HSET', records, name, after)
end
if ttl_ms > 0 then redis.call('PEXPIRE', records, ttl_ms) end
if entry ~= '' then add_to_audit(audit, entry, keep_ms) end
return 1
