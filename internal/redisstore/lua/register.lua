#!lua
-- Makes the record of a new flusher, which enqueue.lua asks for.
--
-- KEYS 1 flusher:{N}:<id>
-- ARGV 1 life of the record, ms
-- Returns 1.
--
-- Twice: a record that is there stays as it is.
redis.call('SET', KEYS[1], '0\n', 'PX', ARGV[1], 'NX')
return 1
