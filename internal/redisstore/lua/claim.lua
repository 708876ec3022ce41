#!lua flags=allow-oom
-- Takes or keeps a shard, if it is free or one's own. Advisory: correctness
-- never depends on it.
--
-- KEYS 1 owner:{N}:<role>
-- ARGV 1 worker   2 ms after which a silent owner gives way
-- Returns 1 when the shard is the worker's, 0 when it is another's.
--
-- Twice: the second call renews what the first one took.
-- allow-oom: a full Redis must still be drained, and who drains it claims first.
local owner = redis.call('GET', KEYS[1])
-- A key that lives longer than any owner lets it was set before Redis's clock
-- went back, by an owner that has not renewed it since. (Twice the time, since
-- the other's setting may differ during a change.)
local stale = redis.call('PTTL', KEYS[1]) > 2 * tonumber(ARGV[2])
if owner and owner ~= ARGV[1] and not stale then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
