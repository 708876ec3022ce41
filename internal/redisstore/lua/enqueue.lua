#!lua
-- Puts one frame on the queue, or answers what happened when it was put there.
--
-- KEYS 1 votes:{N}  2 ledger:{N}  3 flusher:{N}:<id>  4 windows:{N}  5 wake:{N}
--      6... idem:{N}:<digest>, one for each keyed vote
-- ARGV 1 flusher id       2 sequence number      3 life of the flusher record, ms
--      4 life of a key, ms                       5 votes in the body
--      6 body             7 number of polls P    8 number of keyed votes K
--      then P times: poll, votes, options key
--      then K times: index in the body, place in the polls (from 1), option, id
-- Returns the answer as text:
--      "<accepted ms>\n<an outcome letter for each poll>\n" and for each keyed
--      vote whose key had been used a line "<place in the keyed votes, from 0>
--      <option> <id> <accepted ms>" ("-" for all three: used for another option).
--      "lost": there is no record of this flusher; nothing was done.
--
-- Twice: the flusher's record holds the last sequence number and its answer, in
-- the same replication stream as the frame itself. A repeated number finds the
-- record and gets the same answer; the record's life is renewed then, which is
-- a write, so that a WAIT behind it covers the frame also on a new connection.

-- Types first: a script that fails half-way is not rolled back.
local types = { 'list', 'hash', 'string', 'hash', 'list' }
for i, want in ipairs(types) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= want and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. want)
  end
end

local record = redis.call('GET', KEYS[3])
if not record then
  return 'lost'
end
local seq = tonumber(ARGV[2])
local lf = string.find(record, '\n', 1, true)
local last = tonumber(string.sub(record, 1, lf - 1))
if seq < last then
  -- A late copy, whose sender has its answer. It must not get another frame's.
  return redis.error_reply('ERR frame ' .. ARGV[1] .. '-' .. ARGV[2] .. ' is not the last of its flusher')
end
if seq == last then
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
  return string.sub(record, lf + 1)
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = string.format('%.0f', now)

-- Is each poll open?
local P, K = tonumber(ARGV[7]), tonumber(ARGV[8])
local names, left, outcome, fields, seal = {}, {}, {}, {}, {}
for p = 1, P do
  local at = 8 + (p - 1) * 3
  names[p], left[p] = ARGV[at + 1], tonumber(ARGV[at + 2])
  fields[p] = 'accepted:' .. names[p]
  local window = redis.call('HGET', KEYS[4], names[p])
  if not window then
    outcome[p] = 'u'
  else
    local opens, closes, options, mark = string.match(window, '^(%d+) (%d+) (%S+)(.*)$')
    opens, closes = tonumber(opens), tonumber(closes)
    if mark ~= '' and mark ~= ' closed' then
      return redis.error_reply('ERR ' .. KEYS[4] .. ' ' .. names[p] .. ' is no window')
    elseif mark == ' closed' then
      outcome[p] = 'c'
    elseif closes > 0 and now >= closes then
      -- Redis's clock may go back: once seen closed, it stays closed.
      outcome[p] = 'c'
      seal[#seal + 1] = { names[p], window .. ' closed' }
    elseif now < opens then
      outcome[p] = 'n'
    elseif options ~= ARGV[at + 3] then
      outcome[p] = 's'
    else
      outcome[p] = 'a'
    end
  end
end

-- Is each key new? A used key's answer stands, also after the close.
local refused, answers, fresh = {}, {}, {}
local taken = {}
for k = 1, K do
  local at = 8 + P * 3 + (k - 1) * 4
  local index, p, option, id = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local first = taken[KEYS[5 + k]] or redis.call('GET', KEYS[5 + k])
  if first then
    if string.match(first, '^(%S+)') == option then
      answers[#answers + 1] = (k - 1) .. ' ' .. first .. '\n'
    else
      answers[#answers + 1] = (k - 1) .. ' - - -\n'
    end
    refused[#refused + 1] = index
    left[p] = left[p] - 1
  elseif outcome[p] == 'a' then
    local value = option .. ' ' .. id .. ' ' .. stamp
    taken[KEYS[5 + k]] = value
    fresh[#fresh + 1] = k
  end
end

-- HINCRBY must not fail half-way: digits only, and far from 2^63.
local function number(text)
  return string.match(text, '^%d+$') and #text < 19
end
local header, adds = {}, {}
for p = 1, P do
  if outcome[p] == 'a' and left[p] > 0 then
    local had = redis.call('HGET', KEYS[2], fields[p])
    if had and not number(had) then
      return redis.error_reply('ERR ' .. KEYS[2] .. ' ' .. fields[p] .. ' is no number of votes')
    end
    header[#header + 1] = names[p] .. ':' .. string.format('%d', left[p])
    adds[#adds + 1] = p
  end
end

-- All is checked. From here on there are only writes, and none can fail.
local answer = stamp .. '\n' .. table.concat(outcome) .. '\n' .. table.concat(answers)
redis.call('SET', KEYS[3], ARGV[2] .. '\n' .. answer, 'PX', ARGV[3])
for _, w in ipairs(seal) do
  redis.call('HSET', KEYS[4], w[1], w[2])
end
for _, k in ipairs(fresh) do
  redis.call('SET', KEYS[5 + k], taken[KEYS[5 + k]], 'PX', ARGV[4])
end
if #adds > 0 then
  for _, p in ipairs(adds) do
    redis.call('HINCRBY', KEYS[2], fields[p], left[p])
  end
  local flags = #refused > 0 and table.concat(refused, ',') or '-'
  local length = redis.call('RPUSH', KEYS[1], 'P1 ' .. ARGV[1] .. '-' .. ARGV[2] .. ' ' .. stamp .. ' '
    .. ARGV[5] .. ' ' .. flags .. ' ' .. table.concat(header, ',') .. '\n' .. ARGV[6])
  if length == 1 and redis.call('LLEN', KEYS[5]) == 0 then
    redis.call('RPUSH', KEYS[5], '1')
  end
end
return answer
