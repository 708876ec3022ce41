#!lua flags=allow-oom
-- Says that a worker is alive, and lists the live ones of its role.
--
-- KEYS 1 members:{0}:<role>
-- ARGV 1 worker   2 ms after which a silent worker is taken for gone
--      3 '1' to stay, '0' to leave
-- Returns the live workers.
--
-- Twice: the worker is listed once, or not at all.
-- allow-oom: a full Redis must still be drained, by the workers listed here.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - ttl))
-- No one can have been seen so late: Redis's clock has gone back since. Who is
-- alive says so again; who is not must not stay until the clock gets there.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + ttl), '+inf')
if ARGV[3] == '1' then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ttl * 2)
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return redis.call('ZRANGE', KEYS[1], 0, -1)
