-- wrk script of the benchmark: votes, each for an option that is drawn anew, or
-- one GET over and over. By environment:
--
--   BENCH_METHOD, BENCH_PATH   what to ask for
--   BENCH_OPTIONS              options and weights of a vote: ana=50,bruno=30
--   BENCH_SEED                 another draw
--   BENCH_VARIED=1             user agents and client addresses vary, too
--
-- Not loadtest/vote.lua: that looks at each answer in Lua, which costs a good
-- part of a core here, and what the generator takes flatters the slower side of
-- a ratio. Here wrk itself counts the answers above 399, and that the others
-- were 202 follows from what Redis holds afterwards.
--
-- At the end it prints one line for machines, "bench: name=value …".

local threads = 0

function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end

local requests, total = {}, 0

-- agents are user agents as browsers send them: few kinds, many versions.
local function agents()
  local out = {}
  for major = 96, 131 do
    for _, os in ipairs({ "Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7", "X11; Linux x86_64" }) do
      out[#out + 1] = string.format("Mozilla/5.0 (%s) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.0.0 Safari/537.36", os, major)
    end
    for _, model in ipairs({ "SM-A546E", "SM-G991B", "moto g(60)", "Redmi Note 12", "Pixel 7" }) do
      out[#out + 1] = string.format("Mozilla/5.0 (Linux; Android %d; %s) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.%d.%d Mobile Safari/537.36",
        10 + major % 5, model, major, 4600 + 37 * (major - 96), math.random(20, 220))
    end
    out[#out + 1] = string.format("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:%d.0) Gecko/20100101 Firefox/%d.0", major, major)
  end
  for major = 14, 18 do
    for minor = 0, 6 do
      out[#out + 1] = string.format("Mozilla/5.0 (iPhone; CPU iPhone OS %d_%d like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/%d.%d Mobile/15E148 Safari/604.1",
        major, minor, major, minor)
    end
  end
  return out
end

local function address()
  return string.format("%d.%d.%d.%d", math.random(11, 126), math.random(0, 255), math.random(0, 255), math.random(1, 254))
end

-- Ready requests, so that sending one costs a draw and nothing else.
function init()
  math.randomseed((tonumber(os.getenv("BENCH_SEED") or "1") or 1) * 1009 + id)
  local method, path = os.getenv("BENCH_METHOD") or "GET", os.getenv("BENCH_PATH") or "/"
  if method == "GET" then
    requests, total = { { upto = 1, text = wrk.format("GET", path) } }, 1
    return
  end
  local known = os.getenv("BENCH_VARIED") == "1" and agents()
  for name, weight in string.gmatch(os.getenv("BENCH_OPTIONS") or "", "([a-z0-9_-]+)=(%d+)") do
    total = total + tonumber(weight)
    local o = { upto = total, pool = {} }
    for i = 1, known and 10000 or 1 do
      local header = { ["Content-Type"] = "application/json" }
      if known then
        header["User-Agent"] = known[math.random(#known)]
        header["X-Forwarded-For"] = address()
      end
      o.pool[i] = wrk.format("POST", path, header, string.format('{"option":"%s"}', name))
    end
    o.text = #o.pool == 1 and o.pool[1]
    requests[#requests + 1] = o
  end
  if total == 0 then
    io.stderr:write("bench.lua: BENCH_OPTIONS has no option\n")
    os.exit(2)
  end
end

function request()
  local at = math.random(total)
  local i = 1
  while at > requests[i].upto do
    i = i + 1
  end
  local o = requests[i]
  return o.text or o.pool[math.random(#o.pool)]
end

function done(summary, latency)
  local e = summary.errors
  print(string.format("bench: requests=%d duration_us=%d status=%d connect=%d read=%d write=%d timeout=%d p50_us=%d p99_us=%d",
    summary.requests, summary.duration, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
