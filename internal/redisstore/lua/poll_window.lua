#!lua flags=allow-oom
-- Opens or closes a poll by hand, on one shard, now.
--
-- KEYS 1 windows:{N}  2 pollsrev:{N}
-- ARGV 1 poll  2 'open' or 'close'  3 new revision
-- Returns {code, opens ms, closes ms, now ms}; code: 'done', 'same', 'closed'
--      (a closed poll never opens again; nothing was done), 'unknown'.
--
-- Twice: the second call finds the poll open or closed, and answers 'same'.
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
local opens, closes, options = string.match(window, '^(%d+) (%d+) (%S+)$')
opens, closes = tonumber(opens), tonumber(closes)
local closed = closes > 0 and closes <= now
if ARGV[2] == 'open' then
  if closed then
    return { 'closed', opens, closes, now }
  end
  if opens <= now then
    return { 'same', opens, closes, now }
  end
  opens = now
else
  if closed then
    return { 'same', opens, closes, now }
  end
  closes = now
  opens = math.min(opens, now)
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f ', opens, closes) .. options)
redis.call('SET', KEYS[2], ARGV[3])
return { 'done', opens, closes, now }
