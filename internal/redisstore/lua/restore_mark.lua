#!lua
-- Puts a restore's new token into the ledger in place of its last one.
--
-- KEYS 1 ledger:{N}
-- ARGV 1 the new token   2... tokens, one of which must be there now; none: it
--      takes the place of any
-- Returns 1 when it is there; 0 when another one is, and nothing was changed.
--
-- What a restore reads comes in one transaction with such a mark, so in the
-- stream of writes the token stands behind all that was read. While it is there,
-- no failover has taken back any of that.
--
-- Twice: without a condition, the second finds the token there and answers 1.
-- With one it answers 0, and changes nothing: what it read may be newer than the
-- token. The caller then tries another one, in place of this or the last.
local had = redis.call('HGET', KEYS[1], 'restore')
if #ARGV == 1 then
  if had ~= ARGV[1] then
    redis.call('HSET', KEYS[1], 'restore', ARGV[1])
  end
  return 1
end
for i = 2, #ARGV do
  if had == ARGV[i] then
    redis.call('HSET', KEYS[1], 'restore', ARGV[1])
    return 1
  end
end
return 0
