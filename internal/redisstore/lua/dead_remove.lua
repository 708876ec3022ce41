#!lua flags=allow-oom
-- Takes one element off the dead list: back to the queue, or away for good.
--
-- KEYS 1 dead:{N}  2 votes:{N}  3 ledger:{N}  4 wake:{N}
-- ARGV 1 id of the element   2 index at which it was seen
--      3 'requeue' or 'drop'  4 token  then pairs: poll, votes in the element
-- Returns 1; 0 when the element is not there any more; -1 when it can't be told
--      yet how many of its votes were accepted. In both latter cases nothing was
--      changed.
--
-- A header may say anything. What is dropped are the votes that the ledger has
-- as dead, and, since a consumer may not have been able to read a header that
-- the caller reads, those that it has as accepted and that stand nowhere. More
-- would leave the poll with less than nothing pending, for ever.
--
-- Twice: the token of the last removal is kept, so that the second call gets the
-- first one's answer. Only if another removal came between does it look for the
-- element, and does not find it. (Of two elements with equal bytes it would take
-- the second, which is to be done anyway.)
local want = { 'list', 'list', 'hash', 'list' }
for i, w in ipairs(want) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= w and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. w)
  end
end
if redis.call('HGET', KEYS[3], 'last_removal') == ARGV[4] then
  return 1
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
-- Elements before it may have gone since, so it may have moved to the front:
-- all the way, when a list is worked off in order.
local function find()
  local index = math.min(tonumber(ARGV[2]), redis.call('LLEN', KEYS[1]) - 1)
  for _, i in ipairs({ index, 0 }) do
    if i >= 0 and name(redis.call('LINDEX', KEYS[1], i)) == ARGV[1] then
      return i
    end
  end
  local stop = index - 1
  while stop >= 0 do
    local start = math.max(0, stop - 127)
    local page = redis.call('LRANGE', KEYS[1], start, stop)
    for i = #page, 1, -1 do
      if name(page[i]) == ARGV[1] then
        return start + i - 1
      end
    end
    stop = start - 1
  end
end
local index = find()
if not index then
  return 0
end
-- HINCRBY must not fail half-way: digits only, and far from 2^63.
local what = { 'accepted:', 'counted:', 'dead:', 'dropped:' }
local function read(poll)
  local l = redis.call('HMGET', KEYS[3], what[1] .. poll, what[2] .. poll, what[3] .. poll, what[4] .. poll)
  for f = 1, 4 do
    local had = l[f] or '0'
    if not (string.match(had, '^%d+$') and #had < 19) then
      return nil, redis.error_reply('ERR ' .. KEYS[3] .. ' ' .. what[f] .. poll .. ' is no number of votes')
    end
    l[f] = tonumber(had)
  end
  return l
end
-- The votes of a poll in the queue by its headers; nil where they are too many
-- to read in one step.
local function queued(poll)
  local sum, bytes, from = 0, 0, 0
  while true do
    local page = redis.call('LRANGE', KEYS[2], from, from + 15)
    if #page == 0 then
      return sum
    end
    for _, element in ipairs(page) do
      local polls = string.match(element, '^P1 %S+ %d+ %d+ %S+ (%S+)\n') or ''
      for name, votes in string.gmatch(polls, '([^:,]+):(%d+)') do
        if name == poll then
          sum = sum + tonumber(votes)
        end
      end
      bytes = bytes + #element
    end
    from = from + #page
    if from >= 1024 or bytes > 4194304 then
      return nil
    end
  end
end
local undead, dropped = {}, {}
for i = 5, #ARGV, 2 do
  local l, bad = read(ARGV[i])
  if bad then
    return bad
  end
  local votes = tonumber(ARGV[i + 1])
  undead[i] = math.min(votes, l[3])
  -- Accepted, and neither counted nor given up: queued, or never called dead.
  -- Less than what is queued are votes that were called dead and never accepted.
  local missing, more = l[1] - l[2] - l[3] - l[4], 0
  if ARGV[3] == 'drop' and (missing < 0 or missing > 0 and votes > l[3]) then
    local waiting = queued(ARGV[i])
    if not waiting then
      return -1
    end
    more = missing - waiting
    if missing > 0 then
      more = math.max(0, more)
    end
  end
  dropped[i] = math.max(0, math.min(votes, undead[i] + more))
end

-- All is checked. From here on there are only writes, and none can fail.
local element = redis.call('LINDEX', KEYS[1], index)
local marker = 'removed ' .. ARGV[1]
redis.call('LSET', KEYS[1], index, marker)
redis.call('LREM', KEYS[1], 1, marker)
redis.call('HSET', KEYS[3], 'last_removal', ARGV[4])
redis.call('HINCRBY', KEYS[3], 'removed_dead', 1)
for i = 5, #ARGV, 2 do
  -- Nothing is added for a poll that nobody has voted in.
  if undead[i] > 0 then
    redis.call('HINCRBY', KEYS[3], 'dead:' .. ARGV[i], string.format('%d', -undead[i]))
  end
  if ARGV[3] == 'drop' and dropped[i] > 0 then
    redis.call('HINCRBY', KEYS[3], 'dropped:' .. ARGV[i], string.format('%d', dropped[i]))
  end
end
if ARGV[3] == 'requeue' then
  if redis.call('RPUSH', KEYS[2], element) == 1 and redis.call('LLEN', KEYS[4]) == 0 then
    redis.call('RPUSH', KEYS[4], '1')
  end
end
return 1
