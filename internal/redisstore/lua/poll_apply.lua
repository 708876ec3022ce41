#!lua
-- Writes one poll's definition and window to one shard.
--
-- KEYS 1 polls:{N}  2 windows:{N}  3 ledger:{N}  4 pollsrev:{N}
-- ARGV 1 poll  2 definition  3 opens ms (0: at once)  4 closes ms (0: by hand)
--      5 options key  6 new revision  7 '1' to freeze, else '0'
-- Returns {code, opens ms, closes ms, now ms}; code: 'created', 'changed',
--      'same', 'kept' (changed, but what the window already let happen stays),
--      'fixed' (has votes, so its options can't change; nothing was done),
--      'frozen'.
--
-- What has happened stays: a poll that has opened does not become scheduled,
-- and one that has closed does not open again, whatever file is applied later.
-- Freezing gives the window an options key that no vote matches, so that no
-- vote comes in while the options change shard by shard. The times stay as they
-- were, so that freezing can be undone.
--
-- Twice: the second call finds what it wants to write and answers 'same' or
-- 'kept'.
local want = { 'hash', 'hash', 'hash', 'string' }
for i, w in ipairs(want) do
  local got = redis.call('TYPE', KEYS[i]).ok
  if got ~= w and got ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. got .. ', not a ' .. w)
  end
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local opens, closes = tonumber(ARGV[3]), tonumber(ARGV[4])
local old = redis.call('HGET', KEYS[2], ARGV[1])
local code, mark = 'created', ''
local accepted = tonumber(redis.call('HGET', KEYS[3], 'accepted:' .. ARGV[1]) or '0')
if old then
  local was_opens, was_closes, options, was_mark = string.match(old, '^(%d+) (%d+) (%S+)(.*)$')
  was_opens, was_closes, mark = tonumber(was_opens), tonumber(was_closes), was_mark
  if options ~= ARGV[5] and accepted > 0 then
    return { 'fixed', was_opens, was_closes, now }
  end
  if ARGV[7] == '1' then
    redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f %.0f frozen', was_opens, was_closes) .. mark)
    return { 'frozen', was_opens, was_closes, now }
  end
  local kept = false
  if mark ~= '' or was_closes > 0 and was_closes <= now then
    kept = closes ~= was_closes
    opens, closes = was_opens, was_closes
  elseif was_opens <= now then
    kept = opens > now
    opens = was_opens
  end
  code = kept and 'kept' or 'changed'
end
if ARGV[7] == '1' then
  return { 'frozen', opens, closes, now } -- no window, no votes
end
-- Redis's clock may go back: once seen closed, it stays closed.
if closes > 0 and closes <= now then
  mark = ' closed'
end
local window = string.format('%.0f %.0f ', opens, closes) .. ARGV[5] .. mark
if old == window and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return { code == 'kept' and code or 'same', opens, closes, now }
end
redis.call('HSET', KEYS[2], ARGV[1], window)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('SET', KEYS[4], ARGV[6])
return { code, opens, closes, now }
