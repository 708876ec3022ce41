#!lua flags=no-writes
-- A shard's queue as operators see it.
--
-- KEYS 1 votes:{N}  2 archive:{N}  3 dead:{N}  4 ledger:{N}
--      5 owner:{N}:consumer  6 owner:{N}:archiver
-- Returns {now ms, frames queued, frames awaiting archive, dead elements,
--      accepted ms of the oldest queued frame (0: none), the same of the oldest
--      awaiting archive, owners or '', ledger}.
--
-- Twice: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function oldest(list)
  local head = redis.call('LINDEX', list, 0)
  return head and tonumber((string.match(head, '^P1 %S+ (%d+) '))) or 0
end
return { now, redis.call('LLEN', KEYS[1]), redis.call('LLEN', KEYS[2]), redis.call('LLEN', KEYS[3]),
  oldest(KEYS[1]), oldest(KEYS[2]), redis.call('GET', KEYS[5]) or '', redis.call('GET', KEYS[6]) or '',
  redis.call('HGETALL', KEYS[4]) }
