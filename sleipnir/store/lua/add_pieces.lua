-- add_pieces: append the output of models to their run's live stream, for watchers.
--
-- KEYS[1] run   HASH    slp:{p07}:run:<run>
-- KEYS[2] live  STREAM  ...:live
-- ARGV[1] most       int  the number of pieces that are kept, or slightly more
-- ARGV[2] expire_ms  int  the stream's lifetime after its last piece; it may be up to half shorter
-- ARGV[3...] pieces  JSON live.Piece of each; opaque here
--
-- Returns  1  added. Called twice it adds them twice; readers recognise a piece by its place.
--          0  there is no such run (any more); nothing was stored
local run, live = unpack(KEYS)
local most, expire_ms = ARGV[1], ARGV[2]

if redis.call('EXISTS', run) == 0 then return 0 end
local number = redis.call('HINCRBY', run, 'pieces', #ARGV - 2) - #ARGV
for at = 3, #ARGV do
  redis.call('XADD', live, 'MAXLEN', '~', most, '*', 'number', number + at, 'p', ARGV[at])
end
if redis.call('PTTL', live) < expire_ms / 2 then redis.call('PEXPIRE', live, expire_ms) end
return 1
