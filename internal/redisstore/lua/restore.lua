#!lua
-- Restores an archive batch that Redis has lost: its votes enter the tallies
-- and the ledger, as accepted, counted and archived.
--
-- KEYS 1 ledger:{N}  2 batch:{N}  3 batches:{N}
--      4... tally:{N}:<poll>, one for each poll with votes
-- ARGV 1 last token of the restore   2 its next token   3 sequence
--      4 id of the batch
--      then for each poll: poll, votes, number of fields, and as many times:
--      field, votes
-- Returns 1 when this call has restored the batch, now or before; 0 when the
--      batch is the fixed one, which an archiver will commit, or is committed;
--      -1 when the ledger has another token. In both latter cases nothing was
--      changed.
--
-- Each look of a restore and each batch that it adds leaves a new token. So the
-- last one is there only if nothing that it has read or written was taken back
-- by a failover, and no other restore has begun.
--
-- Twice: the ledger has this call's next token after the first time, in the same
-- replication stream as the votes, so the second changes nothing and answers 1.
-- If another restore began between the two, it answers -1.
for i = 1, #KEYS do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= 'hash' and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a hash')
  end
end

local token = redis.call('HGET', KEYS[1], 'restore')
if token == ARGV[2] then
  return 1
end
if token ~= ARGV[1] then
  return -1
end
local known = redis.call('HGET', KEYS[3], ARGV[3])
if known and known ~= ARGV[4] then
  return redis.error_reply('ERR ' .. KEYS[3] .. ' ' .. ARGV[3] .. ' is batch ' .. known .. ', not ' .. ARGV[4])
end
if known or redis.call('HGET', KEYS[2], 'id') == ARGV[4] then
  return 0
end

-- HINCRBY must not fail half-way: digits only, and far from 2^63.
local function number(text)
  return string.match(text, '^%d+$') and #text < 19
end
local adds, bad = {}, nil
local function add(key, field, votes)
  local had = redis.call('HGET', key, field)
  if not number(votes) or had and not number(had) then
    bad = bad or key .. ' ' .. field
  end
  adds[#adds + 1] = { key, field, votes }
end
local at = 4
for i = 4, #KEYS do
  local poll, votes, fields = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  at = at + 3
  for _, what in ipairs({ 'accepted:', 'counted:', 'archived:' }) do
    add(KEYS[1], what .. poll, votes)
  end
  for _ = 1, fields do
    add(KEYS[i], ARGV[at + 1], ARGV[at + 2])
    at = at + 2
  end
end
local counters = redis.call('HMGET', KEYS[1], 'last_batch', 'late_batches')
for i, field in ipairs({ 'last_batch', 'late_batches' }) do
  if counters[i] and not number(counters[i]) then
    bad = bad or KEYS[1] .. ' ' .. field
  end
end
if bad or not number(ARGV[3]) then
  return redis.error_reply('ERR ' .. (bad or 'sequence ' .. ARGV[3]) .. ' is no number')
end

-- All is checked. From here on there are only writes, and none can fail.
for _, a in ipairs(adds) do
  redis.call('HINCRBY', a[1], a[2], a[3])
end
if tonumber(ARGV[3]) > tonumber(counters[1] or '0') then
  redis.call('HSET', KEYS[1], 'last_batch', ARGV[3])
else
  redis.call('HINCRBY', KEYS[1], 'late_batches', 1)
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[1], 'restore', ARGV[2])
return 1
