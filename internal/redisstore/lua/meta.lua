#!lua flags=allow-oom
-- Reads a value that all processes must agree on; the first to ask sets it.
--
-- KEYS 1 meta:{0}
-- ARGV 1 field  2 value, if there is none yet
-- Returns the value.
--
-- Twice: the second call finds the value.
-- allow-oom: whoever drains a full Redis asks for the values first.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
