#!lua flags=no-writes
-- One step of the audit's snapshot of a shard.
--
-- The audit counts the votes in the frames themselves, also when a queue is
-- millions deep, without one long command. Every element that was ever pushed
-- has a place that never changes: the elements taken off the head so far, plus
-- its index. The audit reads page by page; a page that reaches the ends of all
-- three lists comes with the ledger and the tallies of that same instant. What
-- left a list before it was read is not in it at that instant either.
--
-- KEYS 1 votes:{N}  2 archive:{N}  3 dead:{N}  4 ledger:{N}
--      5... tally:{N}:<poll>, the audited polls
-- ARGV 1, 2, 3 place from which to read on, of each list   4 elements a page
--      5 bytes a page
-- Returns {now ms, three times {place of the head, place of the first element
--      read, elements}, 1 when this page reaches all ends, ledger, tallies};
--      ledger and tallies are empty before that.
--
-- Twice: it writes nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local counters = redis.call('HMGET', KEYS[4], 'taken_elements', 'archived_elements', 'removed_dead')
local room, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local lists, done = {}, 1
for i = 1, 3 do
  local head = tonumber(counters[i] or '0')
  local from = math.max(tonumber(ARGV[i]), head)
  local stop = head + redis.call('LLEN', KEYS[i])
  local elements = {}
  while from + #elements < stop and room > 0 and bytes > 0 do
    local start = from + #elements - head
    for _, e in ipairs(redis.call('LRANGE', KEYS[i], start, start + math.min(room, 16) - 1)) do
      elements[#elements + 1] = e
      room = room - 1
      bytes = bytes - #e
    end
  end
  if from + #elements < stop then
    done = 0
  end
  lists[i] = { head, from, elements }
end
local ledger, tallies = {}, {}
if done == 1 then
  ledger = redis.call('HGETALL', KEYS[4])
  for i = 5, #KEYS do
    tallies[i - 4] = redis.call('HGETALL', KEYS[i])
  end
end
return { now, lists[1], lists[2], lists[3], done, ledger, tallies }
