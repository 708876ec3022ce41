#!lua flags=no-writes
-- One poll's tally, ledger and window on one shard, in one step.
--
-- KEYS 1 tally:{N}:<poll>  2 ledger:{N}  3 windows:{N}
-- ARGV 1 poll
-- Returns {now ms, window or '', {accepted, counted, archived, dead, dropped},
--      tally}.
--
-- Twice: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ledger = redis.call('HMGET', KEYS[2], 'accepted:' .. ARGV[1], 'counted:' .. ARGV[1],
  'archived:' .. ARGV[1], 'dead:' .. ARGV[1], 'dropped:' .. ARGV[1])
for i = 1, 5 do
  ledger[i] = ledger[i] or '0'
end
return { now, redis.call('HGET', KEYS[3], ARGV[1]) or '', ledger, redis.call('HGETALL', KEYS[1]) }
