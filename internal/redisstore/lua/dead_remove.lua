#!lua flags=allow-oom
-- Takes one element off the dead list: back to the queue, or away for good.
--
-- KEYS 1 dead:{N}  2 votes:{N}  3 ledger:{N}  4 wake:{N}
-- ARGV 1 id of the element   2 index at which it was seen
--      3 'requeue' or 'drop'  then pairs: poll, votes in the element
-- Returns 1; 0 when the element is not there any more.
--
-- Twice: the second call does not find the element. (Of two elements with equal
-- bytes it would take the second, which is to be done anyway.)
local want = { 'list', 'list', 'hash', 'list' }
for i, w in ipairs(want) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= w and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. w)
  end
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
local dead = {}
for i = 4, #ARGV, 2 do
  for _, what in ipairs({ 'dead:', 'dropped:' }) do
    local had = redis.call('HGET', KEYS[3], what .. ARGV[i])
    if had and not (string.match(had, '^%d+$') and #had < 19) then
      return redis.error_reply('ERR ' .. KEYS[3] .. ' ' .. what .. ARGV[i] .. ' is no number of votes')
    end
    if what == 'dead:' then
      dead[i] = tonumber(had or '0')
    end
  end
end

-- All is checked. From here on there are only writes, and none can fail.
local element = redis.call('LINDEX', KEYS[1], index)
local marker = 'removed ' .. ARGV[1]
redis.call('LSET', KEYS[1], index, marker)
redis.call('LREM', KEYS[1], 1, marker)
redis.call('HINCRBY', KEYS[3], 'removed_dead', 1)
for i = 4, #ARGV, 2 do
  -- Votes whose header no one could read then were never counted as dead.
  local votes = math.min(tonumber(ARGV[i + 1]), dead[i])
  redis.call('HINCRBY', KEYS[3], 'dead:' .. ARGV[i], string.format('%d', -votes))
  if ARGV[3] == 'drop' then
    redis.call('HINCRBY', KEYS[3], 'dropped:' .. ARGV[i], ARGV[i + 1])
  end
end
if ARGV[3] == 'requeue' then
  if redis.call('RPUSH', KEYS[2], element) == 1 and redis.call('LLEN', KEYS[4]) == 0 then
    redis.call('RPUSH', KEYS[4], '1')
  end
end
return 1
