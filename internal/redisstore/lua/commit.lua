#!lua flags=allow-oom
-- Counts: if the queue still begins with the elements that the caller read,
-- adds their votes to the tallies and the ledger and moves them on.
--
-- KEYS 1 votes:{N}  2 archive:{N}  3 dead:{N}  4 ledger:{N}
--      5... tally:{N}:<poll>, one for each counted poll
-- ARGV 1 token      2 number of elements   3 id of the first   4 id of the last
--      5 digest of all of them, or ''
--      6 number of dead elements D         7 number of ledger fields L
--      then D places (from 0, ascending) of elements for the dead list
--      then L times: ledger field, votes
--      then for each tally: number of fields, and as many times: field, votes
-- Returns {1, now ms} when it is done, {0, now ms} when the head had moved and
-- nothing was changed.
--
-- The ends tell a frame from all others, but not one garbage element from its
-- twin, nor a frame from the one that its flusher sent again, after a failover
-- that took it, and that was decided otherwise. The digest of the headers does.
--
-- Twice: after the first time the head is another one, so the second changes
-- nothing. The token of the last commit is kept, so that the second call gets
-- the first one's answer, unless another commit came between: then it is told
-- that the head had moved, which is true as well.
--
-- allow-oom: a full Redis must still be drained; this frees as much as it takes.
for i = 1, #KEYS do
  local want = i <= 3 and 'list' or 'hash'
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= want and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. want)
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('HGET', KEYS[4], 'last_commit') == ARGV[1] then
  return { 1, now }
end

local function name(element)
  if not element then
    return nil
  end
  local id = string.match(element, '^P1 ([^ ]+) ')
  if id and #id <= 100 then
    return id
  end
  return 'sha1:' .. redis.sha1hex(element)
end
local n = tonumber(ARGV[2])
if name(redis.call('LINDEX', KEYS[1], 0)) ~= ARGV[3] or name(redis.call('LINDEX', KEYS[1], n - 1)) ~= ARGV[4] then
  return { 0, now }
end
if ARGV[5] ~= '' then
  local pages = {}
  for from = 0, n - 1, 128 do
    local page = redis.call('LRANGE', KEYS[1], from, math.min(from + 128, n) - 1)
    for i, element in ipairs(page) do
      page[i] = string.match(element, '^P1 [^\n]*\n') or redis.sha1hex(element) .. '\n'
    end
    pages[#pages + 1] = redis.sha1hex(table.concat(page))
  end
  if redis.sha1hex(table.concat(pages)) ~= ARGV[5] then
    return { 0, now }
  end
end

-- HINCRBY must not fail half-way: digits only, and far from 2^63.
local function number(text)
  return string.match(text, '^%d+$') and #text < 19
end
local D, L = tonumber(ARGV[6]), tonumber(ARGV[7])
local at = 7 + D
local adds = {}
local function add(key, count)
  for _ = 1, count do
    local field, votes = ARGV[at + 1], ARGV[at + 2]
    local had = redis.call('HGET', key, field)
    if had and not number(had) then
      return key .. ' ' .. field
    end
    adds[#adds + 1] = { key, field, votes }
    at = at + 2
  end
end
local bad = add(KEYS[4], L)
for i = 5, #KEYS do
  local count = tonumber(ARGV[at + 1])
  at = at + 1
  bad = bad or add(KEYS[i], count)
end
if bad then
  return redis.error_reply('ERR ' .. bad .. ' is no number of votes')
end

-- All is checked. From here on there are only writes, and none can fail.
for _, a in ipairs(adds) do
  redis.call('HINCRBY', a[1], a[2], a[3])
end
redis.call('HSET', KEYS[4], 'last_commit', ARGV[1])
redis.call('HINCRBY', KEYS[4], 'taken_elements', n)
local d = 1
for i = 0, n - 1 do
  if d <= D and tonumber(ARGV[7 + d]) == i then
    d = d + 1
    redis.call('LMOVE', KEYS[1], KEYS[3], 'LEFT', 'RIGHT')
  else
    redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  end
end
return { 1, now }
