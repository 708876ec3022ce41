#!lua flags=no-writes
-- The windows and the ledger of all polls on one shard, in one step.
--
-- KEYS 1 windows:{N}  2 ledger:{N}
-- Returns {now ms, windows, ledger}.
--
-- Twice: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
return { now, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]) }
