# Sourced by scripts/bench: what expiry costs, and Redis doing the same beside it. Writes $data/expiry.md.
# bench_expiry MAYFLY_PORT MAYFLY_PID REAP HEAD TRICKLE COSTS: documents of the mass expiry, pending deadlines (and
# backlog), seconds of the trickle and of each measurement of costs. Leaves a backlog for bench_backlog.
bench_expiry() {
  local load=$ROOT/build/release/bench/mayfly_load port=$1 pid=$2 reap=$3 head=$4 trickle=$5 costs=$6
  local redis_port redis_pid
  {
    "$load" --port "$port" --pid "$pid" --reap "$reap"
    echo
    if install_packages redis-server >&2 && command -v redis-server >/dev/null; then
      redis_port=$((port + 1))
      redis-server --port "$redis_port" --bind 127.0.0.1 --save '' --appendonly no \
        --dir "$data" >"$data/redis.log" 2>&1 &
      redis_pid=$!
      until (exec 3<>"/dev/tcp/127.0.0.1/$redis_port") 2>/dev/null; do kill -0 "$redis_pid" 2>/dev/null || break; done
      echo "$(redis-server --version | cut -d' ' -f1-3), in memory only:"
      echo
      "$load" --port "$redis_port" --pid "$redis_pid" --redis-reap "$reap"
      kill "$redis_pid" 2>/dev/null && wait "$redis_pid" 2>/dev/null || true
      echo
    fi
    "$load" --port "$port" --pid "$pid" --trickle "$trickle"
    echo
    "$load" --port "$port" --pid "$pid" --head "$head"
    echo
    "$load" --port "$port" --pid "$pid" --expiry-costs --seconds "$costs"
    echo
    "$load" --port "$port" --pid "$pid" --idle-rules 10000 --seconds "$costs"
    "$load" --port "$port" --pid "$pid" --fill-backlog "$head"
  } | tee "$data/expiry.md"
}

# bench_backlog PORT PID: the server was started again, on the backlog that bench_expiry has left. Adds to
# $data/expiry.md.
bench_backlog() {
  {
    echo
    "$ROOT/build/release/bench/mayfly_load" --port "$1" --pid "$2" --backlog
  } | tee -a "$data/expiry.md"
}
