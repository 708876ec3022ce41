#!/usr/bin/env bash
# Starts the whole stack on free ports of loopback, loads it with wrk, waits
# until everything is counted and archived, and says what was accepted, counted,
# archived, lost and doubled. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
Usage: loadtest/run.sh [FLAGS] [OPTION=WEIGHT…]

Loads api, consumer, archiver and a redis-server of its own with wrk, for the
options ana=50 bruno=30 carla=20 unless others are given.

  -c N    connections (64)
  -d N    seconds (10)
  -t N    threads of wrk (2)
  -n N    queue shards (1)
  -w N    consumers (1)
  -s HOW  Redis's appendfsync: always, everysec or no (everysec)
  -b HOW  body of a vote: json or form (json)
  -k      an Idempotency-Key with each vote
  -h      this help

Exit codes: 0 nothing was lost or doubled and every answer was 202; 1 otherwise,
or it could not be done; 2 wrong use. Needs bin/ (make build), wrk,
redis-server and redis-cli.
END
}

wrong() {
  echo "run.sh: $1; see -h" >&2
  exit 2
}

connections=64 seconds=10 threads=2 shards=1 consumers=1 fsync=everysec body=json keys=
while getopts :c:d:t:n:w:s:b:kh flag; do
  case $flag in
    c) connections=$OPTARG ;;
    d) seconds=$OPTARG ;;
    t) threads=$OPTARG ;;
    n) shards=$OPTARG ;;
    w) consumers=$OPTARG ;;
    s) fsync=$OPTARG ;;
    b) body=$OPTARG ;;
    k) keys=1 ;;
    h) usage; exit 0 ;;
    :) wrong "-$OPTARG needs a value" ;;
    *) wrong "unknown flag -$OPTARG" ;;
  esac
done
shift $((OPTIND - 1))
for n in "$connections" "$seconds" "$threads" "$shards" "$consumers"; do
  [[ $n =~ ^[1-9][0-9]{0,5}$ ]] || wrong "'$n' is no whole number above 0"
done
((threads <= connections)) || wrong "wrk needs a connection for each thread"
[[ $fsync =~ ^(always|everysec|no)$ ]] || wrong "-s $fsync: allowed are always, everysec and no"
[[ $body =~ ^(json|form)$ ]] || wrong "-b $body: allowed are json and form"
for o in "${@:-ana=50}"; do
  [[ $o =~ ^[a-z0-9][a-z0-9_-]{0,62}=[0-9]{1,6}$ ]] || wrong "'$o' is not like ana=70"
done
(($# > 0)) || set -- ana=50 bruno=30 carla=20

for tool in wrk redis-server redis-cli bin/api bin/consumer bin/archiver bin/tally; do
  command -v "$tool" >/dev/null || { echo "run.sh: $tool is missing (make tools build)" >&2; exit 1; }
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/paredao-load.XXXXXX")
pids=()
failed=1

# finish ends, by its pid, what was started here.
finish() {
  trap - EXIT INT TERM
  # Last started, first stopped; Redis at the very end.
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill "${pids[i]}" 2>/dev/null || true
    wait "${pids[i]}" 2>/dev/null || true
  done
  if ((failed == 1)); then
    for log in "$dir"/*.log; do
      [[ -s $log ]] && { echo "--- $(basename "$log")"; tail -n 5 "$log"; } >&2
    done
  fi
  rm -rf "$dir"
  exit "$failed"
}
trap finish EXIT
trap 'echo "run.sh: interrupted" >&2; failed=130; finish' INT TERM

# await waits until a command succeeds, as long as all processes live.
await() {
  local what=$1 limit=$2 began=$SECONDS
  shift 2
  until "$@"; do
    for pid in "${pids[@]}"; do
      kill -0 "$pid" 2>/dev/null || { echo "run.sh: a process ended while waiting until $what" >&2; exit 1; }
    done
    ((SECONDS - began < limit)) || { echo "run.sh: after $limit s it is not true that $what" >&2; exit 1; }
    sleep 0.05
  done
}

redis() { redis-cli -h 127.0.0.1 -p "$port" "$@"; }
redis_up() { [[ $(redis PING 2>/dev/null) == PONG ]]; }

# A port may be taken: then redis-server ends at once, and another is tried.
for try in 1 2 3 4 5 6 7 8 9 10; do
  port=$((20000 + RANDOM % 20000))
  redis_up && continue
  redis-server --port "$port" --bind 127.0.0.1 --dir "$dir" --save '' --appendonly yes --appendfsync "$fsync" \
    --maxmemory-policy noeviction --logfile "$dir/redis.log" &
  server=$!
  while kill -0 "$server" 2>/dev/null && ! redis_up; do sleep 0.05; done
  if kill -0 "$server" 2>/dev/null; then
    pids+=("$server")
    break
  fi
  ((try < 10)) || { echo "run.sh: no free port for redis-server" >&2; exit 1; }
done

poll=load
{
  printf 'polls:\n  - id: %s\n    title: Load test\n    options:\n' "$poll"
  for o in "$@"; do printf '      - {id: "%s"}\n' "${o%%=*}"; done
} >"$dir/polls.yaml"

export PAREDAO_REDIS_URL="redis://127.0.0.1:$port/0" PAREDAO_QUEUE_SHARDS="$shards" PAREDAO_LOG_FORMAT=json
export PAREDAO_ARCHIVE_URL="file:$dir/archive"

bin/api --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --polls-file "$dir/polls.yaml" 2>"$dir/api.log" &
pids+=("$!")
for ((i = 1; i <= consumers; i++)); do
  bin/consumer --admin-listen 127.0.0.1:0 2>"$dir/consumer-$i.log" &
  pids+=("$!")
done
bin/archiver --admin-listen 127.0.0.1:0 --archive-max-age 1s 2>"$dir/archiver.log" &
pids+=("$!")

# addr finds an address in a log, where the kernel chose the port.
addr() { sed -n "s/.*\"msg\":\"$2\",\"addr\":\"\([^\"]*\)\".*/\1/p" "$dir/$1.log" | head -n 1; }
has_addr() { [[ -n $(addr "$@") ]]; }
poll_known() { bin/tally polls show "$poll" >/dev/null 2>&1; }
await 'the api listens' 30 has_addr api 'api takes votes'
await 'the poll is known' 30 poll_known
url="http://$(addr api 'api takes votes')"

echo "wrk: $connections connections, $threads threads, $seconds s, ${keys:+Idempotency-Keys, }$body, appendfsync $fsync, $shards shards, $consumers consumers"
BODY=$body KEYS=$keys POLL=$poll wrk -t "$threads" -c "$connections" -d "${seconds}s" --latency \
  -s loadtest/vote.lua "$url" -- "$@" | tee "$dir/wrk.out"
figure() { sed -n "s/^votes: .*$1=\([0-9]*\).*/\1/p" "$dir/wrk.out"; }
acked=$(figure accepted) other=$(figure other) errors=$(figure errors)
[[ -n $acked && -n $other && -n $errors ]] || { echo 'run.sh: wrk gave no figures' >&2; exit 1; }

drained() {
  local n left=0
  for ((n = 0; n < shards; n++)); do
    left=$((left + $(redis LLEN "votes:{$n}") + $(redis LLEN "archive:{$n}")))
  done
  ((left == 0))
}
began=$SECONDS
await 'everything is counted and archived' 600 drained
echo "drained $((SECONDS - began)) s after the load"

# Every frame and every archived row is read for this.
audit=0
line=$(bin/tally audit "$poll" --recount -o csv | tr -d '\r' | grep "^$poll,") || audit=1
IFS=, read -r _ accepted counted _ dead _ _ _ archived _ <<<"$line"
[[ $accepted =~ ^[0-9]+$ && $counted =~ ^[0-9]+$ && $archived =~ ^[0-9]+$ ]] || { echo "run.sh: no audit: $line" >&2; exit 1; }

most() { local m=0 n; for n in "$@"; do ((n > m)) && m=$n; done; echo "$m"; }
# What was answered 202 must have been accepted; what was accepted must have
# been counted and archived. At the end each connection may have had one more
# vote taken, whose answer wrk did not wait for.
lost=$(most 0 $((acked - accepted)) $((accepted - counted)) $((accepted - archived)))
doubled=$(most 0 $((counted - accepted)) $((archived - accepted)) $((accepted - acked - connections - errors)))
printf 'answered 202 %d, accepted %d, counted %d, archived %d, lost %d, doubled %d, dead %d, other answers %d, errors %d, audit %s\n' \
  "$acked" "$accepted" "$counted" "$archived" "$lost" "$doubled" "$dead" "$other" "$errors" \
  "$( ((audit)) && echo FAILED || echo ok)"
if ((lost || doubled || dead || other || errors || audit)); then
  echo 'FAILED' >&2
  exit 1
fi
failed=0
