#!lua flags=no-writes
-- Reads elements of a list from a place on, whole, up to a bound.
--
-- KEYS 1 the list   2 batch:{N}, or none
-- ARGV 1 place of the first element (from 0)
--      2 votes, 3 bytes, 4 elements: read on until one of these is reached
--      5 with KEYS 2: the id of the batch that must be the current one
-- Returns the elements; false if the batch is another one by now.
--
-- Twice: it writes nothing.
if KEYS[2] and redis.call('HGET', KEYS[2], 'id') ~= ARGV[5] then
  return false
end
local from = tonumber(ARGV[1])
local votes, bytes, count = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local out, step = {}, 2
while count > 0 and votes > 0 and bytes > 0 do
  local page = redis.call('LRANGE', KEYS[1], from, from + math.min(step, count) - 1)
  if #page == 0 then
    break
  end
  for _, element in ipairs(page) do
    out[#out + 1] = element
    votes = votes - (tonumber((string.match(element, '^P1 %S+ %d+ (%d+) '))) or 1)
    bytes = bytes - #element
    count = count - 1
    if votes <= 0 or bytes <= 0 then
      break
    end
  end
  from = from + #page
  -- Small elements come in large pages, large ones do not overshoot.
  step = math.min(step * 2, 256)
end
return out
