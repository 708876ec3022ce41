-- wrk script: votes, each for an option that is drawn anew.
--
--   wrk -t2 -c64 -d10s -s loadtest/vote.lua http://127.0.0.1:8080 -- ana=70 bruno=30
--
-- Arguments after -- are options and their weights (default: ana=50 bruno=30
-- carla=20). More by environment:
--
--   POLL=demo        the poll
--   BODY=json|form   how the vote is written
--   KEYS=1           an Idempotency-Key of its own for each request
--   SEED=1           another draw
--
-- At the end it prints, beside wrk's own figures, one line for machines:
--
--   votes: accepted=N other=N status_422=N errors=N seconds=S accepted_per_second=R requests_per_second=R
--
-- accepted are answers 202, other all other answers, each also by its status,
-- and errors what had no answer. wrk counts no answer that comes after its last
-- second, though the vote was taken: no judgement, that is what ledger is for.

local threads = {}

function setup(thread)
  thread:set("id", #threads)
  threads[#threads + 1] = thread
end

local options, total = {}, 0
local format, path, keys, body_type

local function fail(message)
  io.stderr:write("vote.lua: " .. message .. "\n")
  os.exit(2)
end

function init(args)
  local given = #args > 0 and args or { "ana=50", "bruno=30", "carla=20" }
  for _, arg in ipairs(given) do
    local option, weight = string.match(arg, "^([a-z0-9][a-z0-9_-]*)=(%d+)$")
    if not option then
      fail("wrong argument '" .. arg .. "': options and weights are written ana=70")
    end
    total = total + tonumber(weight)
    options[#options + 1] = { upto = total, name = option }
  end
  if total == 0 then
    fail("one weight must be above 0")
  end
  local body = os.getenv("BODY") or "json"
  if body == "json" then
    format, body_type = '{"option":"%s"}', "application/json"
  elseif body == "form" then
    format, body_type = "option=%s", "application/x-www-form-urlencoded"
  else
    fail("BODY=" .. body .. ": allowed are json and form")
  end
  path = "/polls/" .. (os.getenv("POLL") or "demo") .. "/votes"
  keys = os.getenv("KEYS") == "1"
  -- Threads must not draw the same.
  math.randomseed((tonumber(os.getenv("SEED") or "1") or 1) * 1009 + id)
  -- Keys must not come again in a later run.
  local random = io.open("/dev/urandom", "rb")
  run = ""
  for c in string.gmatch(random:read(12), ".") do
    run = run .. string.format("%02x", string.byte(c))
  end
  random:close()
  -- Ready requests, one for each option; only a key differs.
  for _, o in ipairs(options) do
    o.body = string.format(format, o.name)
    o.request = wrk.format("POST", path, { ["Content-Type"] = body_type }, o.body)
  end
  sent, accepted, other, statuses = 0, 0, 0, ""
end

function request()
  local at = math.random(total)
  local o
  for i = 1, #options do
    o = options[i]
    if at <= o.upto then
      break
    end
  end
  if not keys then
    return o.request
  end
  sent = sent + 1
  return wrk.format("POST", path, { ["Content-Type"] = body_type, ["Idempotency-Key"] = run .. "-" .. id .. "-" .. sent }, o.body)
end

local by_status = {}

function response(status)
  if status == 202 then
    accepted = accepted + 1
    return
  end
  other = other + 1
  by_status[status] = (by_status[status] or 0) + 1
  -- thread:get hands over text and numbers, no tables.
  statuses = ""
  for s, n in pairs(by_status) do
    statuses = statuses .. s .. "=" .. n .. " "
  end
end

function done(summary)
  local all, rest, by = 0, 0, {}
  for _, thread in ipairs(threads) do
    all = all + thread:get("accepted")
    rest = rest + thread:get("other")
    for s, n in string.gmatch(thread:get("statuses"), "(%d+)=(%d+)") do
      by[s] = (by[s] or 0) + tonumber(n)
    end
  end
  local line = string.format("votes: accepted=%d other=%d", all, rest)
  local order = {}
  for s in pairs(by) do
    order[#order + 1] = s
  end
  table.sort(order)
  for _, s in ipairs(order) do
    line = line .. string.format(" status_%s=%d", s, by[s])
  end
  local e, seconds = summary.errors, summary.duration / 1e6
  print(line .. string.format(" errors=%d seconds=%.2f accepted_per_second=%.0f requests_per_second=%.0f",
    e.connect + e.read + e.write + e.timeout, seconds, all / seconds, summary.requests / seconds))
end
