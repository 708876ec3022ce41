#!lua flags=allow-oom
-- Ends an archive batch whose objects are all written: its frames leave the
-- list and its votes enter the ledger.
--
-- KEYS 1 archive:{N}  2 ledger:{N}  3 batch:{N}  4 batches:{N}
-- ARGV 1 id of the batch, then pairs: ledger field, votes
-- Returns 1 when the batch is committed, now or before; 0 when it is not the
-- current one and never was committed.
--
-- last_batch is the highest sequence that is committed. A restore may have
-- raised it above that of the fixed batch, which then counts as a late one: so
-- an audit sees that its snapshot can't tell which batches were known then.
--
-- Twice: batches:{N} has the id of every committed batch, and the record of the
-- fixed batch is gone, so the second call changes nothing and answers 1.
-- allow-oom: a full Redis must still be drained.
local want = { 'list', 'hash', 'hash', 'hash' }
for i, w in ipairs(want) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= w and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. w)
  end
end
local batch = redis.call('HMGET', KEYS[3], 'id', 'sequence', 'elements', 'first', 'last')
if batch[1] ~= ARGV[1] then
  local sequence = string.match(ARGV[1], '^%d+%-0*(%d+)%-')
  if sequence and redis.call('HGET', KEYS[4], sequence) == ARGV[1] then
    return 1
  end
  return 0
end
local function name(element)
  return element and string.match(element, '^P1 ([^ ]+) ')
end
local other = redis.call('HGET', KEYS[4], batch[2])
if other and other ~= ARGV[1] then
  return redis.error_reply('ERR ' .. KEYS[4] .. ' ' .. batch[2] .. ' is batch ' .. other .. ', not ' .. ARGV[1])
end
local n = tonumber(batch[3])
if name(redis.call('LINDEX', KEYS[1], 0)) ~= batch[4] or name(redis.call('LINDEX', KEYS[1], n - 1)) ~= batch[5] then
  return redis.error_reply('ERR ' .. KEYS[1] .. ' does not begin with batch ' .. ARGV[1] .. ', which is fixed')
end
-- HINCRBY must not fail half-way: digits only, and far from 2^63.
local function number(text)
  return string.match(text, '^%d+$') and #text < 19
end
for i = 2, #ARGV, 2 do
  local had = redis.call('HGET', KEYS[2], ARGV[i])
  if had and not number(had) then
    return redis.error_reply('ERR ' .. KEYS[2] .. ' ' .. ARGV[i] .. ' is no number of votes')
  end
end
local counters = redis.call('HMGET', KEYS[2], 'last_batch', 'late_batches')
for i = 1, 2 do
  if counters[i] and not number(counters[i]) then
    return redis.error_reply('ERR ' .. KEYS[2] .. ' has a number of batches that is none')
  end
end

-- All is checked. From here on there are only writes, and none can fail.
for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1])
end
if tonumber(batch[2]) > tonumber(counters[1] or '0') then
  redis.call('HSET', KEYS[2], 'last_batch', batch[2])
else
  redis.call('HINCRBY', KEYS[2], 'late_batches', 1)
end
redis.call('HINCRBY', KEYS[2], 'archived_elements', n)
redis.call('HSET', KEYS[4], batch[2], ARGV[1])
redis.call('LTRIM', KEYS[1], n, -1)
redis.call('DEL', KEYS[3])
return 1
