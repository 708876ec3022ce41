#!lua flags=allow-oom
-- Opens or closes a poll by hand, on one shard, now; or seals one that has closed
-- by the clock, so that it stays closed if Redis's clock goes back.
--
-- KEYS 1 windows:{N}  2 pollsrev:{N}
-- ARGV 1 poll  2 'open', 'close' or 'seal'  3 new revision
-- Returns {code, opens ms, closes ms, now ms}; code: 'done', 'same', 'closed'
--      (a closed poll never opens again; nothing was done), 'open' (it has not
--      closed, so there is nothing to seal), 'unknown'.
--
-- Twice: the second call finds the poll open, closed or sealed: 'same'.
-- allow-oom: a poll can be closed whatever the memory.
local want = { 'hash', 'string' }
for i, w in ipairs(want) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= w and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. w)
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local window = redis.call('HGET', KEYS[1], ARGV[1])
if not window then
  return { 'unknown', 0, 0, now }
end
local opens, closes, options, mark = string.match(window, '^(%d+) (%d+) (%S+)(.*)$')
opens, closes = tonumber(opens), tonumber(closes)
local closed = mark ~= '' or closes > 0 and closes <= now
if mark ~= '' and ARGV[2] ~= 'open' then
  return { 'same', opens, closes, now }
end
local code = 'done'
if ARGV[2] == 'open' then
  if closed then
    return { 'closed', opens, closes, now }
  end
  if opens <= now then
    return { 'same', opens, closes, now }
  end
  opens = now
elseif closed then
  code, mark = 'same', ' closed'
elseif ARGV[2] == 'seal' then
  return { 'open', opens, closes, now }
else
  closes = now
  opens = math.min(opens, now)
  mark = ' closed'
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f ', opens, closes) .. options .. mark)
redis.call('SET', KEYS[2], ARGV[3])
return { code, opens, closes, now }
