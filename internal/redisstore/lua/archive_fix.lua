#!lua flags=allow-oom
-- Fixes the next archive batch, so that whoever writes it writes the same.
--
-- KEYS 1 archive:{N}  2 ledger:{N}  3 batch:{N}
-- ARGV 1 id of the batch to be replaced, or ''
--      2 sequence  3 id  4 elements  5 id of the first frame  6 id of the last
--      7 votes
-- Returns the fields of batch:{N}: of the batch that is fixed now, this one or
-- an earlier one. Returns {} if the list does not begin so.
--
-- Twice: the second call finds the batch fixed and returns it.
-- A batch is replaced only when its sequence was used before a failover took
-- that away: the archive has a manifest of that number with another batch.
local fixed = redis.call('HGET', KEYS[3], 'id')
if fixed and fixed ~= ARGV[1] then
  return redis.call('HGETALL', KEYS[3])
end
local function name(element)
  return element and string.match(element, '^P1 ([^ ]+) ')
end
local n = tonumber(ARGV[4])
if name(redis.call('LINDEX', KEYS[1], 0)) ~= ARGV[5] or name(redis.call('LINDEX', KEYS[1], n - 1)) ~= ARGV[6] then
  return {}
end
if tonumber(ARGV[2]) <= tonumber(redis.call('HGET', KEYS[2], 'last_batch') or '0') then
  return {}
end
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[3], 'sequence', ARGV[2], 'id', ARGV[3], 'elements', ARGV[4],
  'first', ARGV[5], 'last', ARGV[6], 'votes', ARGV[7])
return redis.call('HGETALL', KEYS[3])
