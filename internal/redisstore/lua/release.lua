#!lua flags=allow-oom
-- Hands a shard back.
--
-- KEYS 1 owner:{N}:<role>
-- ARGV 1 worker
-- Returns 1 when the shard was the worker's, else 0.
--
-- Twice: the second call finds another owner, or none, and changes nothing.
-- allow-oom: it only frees.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
