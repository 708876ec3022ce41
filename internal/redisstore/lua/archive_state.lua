#!lua flags=no-writes
-- What an archiver decides by.
--
-- KEYS 1 archive:{N}  2 ledger:{N}  3 batch:{N}
-- Returns {now ms, elements in the list, accepted ms of the first frame (0:
-- none), the same of the last one, sequence of the last committed batch, the
-- fields of batch:{N}, all ledger fields}.
--
-- Twice: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function accepted(index)
  local frame = redis.call('LINDEX', KEYS[1], index)
  return frame and tonumber((string.match(frame, '^P1 %S+ (%d+) '))) or 0
end
local last = tonumber(redis.call('HGET', KEYS[2], 'last_batch') or '0')
return { now, redis.call('LLEN', KEYS[1]), accepted(0), accepted(-1), last,
  redis.call('HGETALL', KEYS[3]), redis.call('HGETALL', KEYS[2]) }
