# Sourced by scripts/bench: what replica sets cost, beside a standalone server. Writes $data/sets.md.
# bench_sets SECONDS REAP ROUNDS: a workload's length, documents of the mass expiry, failovers.
bench_sets() {
  local bin=$ROOT/build/release ports=(27931 27932 27933 27934 27935) i
  member() {  # member NUMBER FLAG…
    local n=$1
    shift
    "$bin/mayflyd" --port "${ports[n]}" --dbpath "$data/member$n" --nounixsocket --httpPort 0 "$@" \
      >"$data/member$n.log" 2>&1 &
    set_pids+=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/${ports[n]}") 2>/dev/null; do
      kill -0 "${set_pids[n]}" || die "a member did not start: $(tail -3 "$data/member$n.log")"
    done
  }
  for i in 0 1 2; do member $i --replSet rs0; done
  member 3 --replSet one
  member 4
  setup_python
  "$PYTHON" - "${ports[@]}" <<'PY'
import sys, time, pymongo
p = [int(a) for a in sys.argv[1:]]
def admin(port): return pymongo.MongoClient("127.0.0.1", port, directConnection=True).admin
members = [{"_id": i, "host": f"127.0.0.1:{p[i]}", "priority": 2 if i == 0 else 1} for i in range(3)]
admin(p[0]).command("replSetInitiate", {"_id": "rs0", "members": members})
admin(p[3]).command("replSetInitiate", {"_id": "one", "members": [{"_id": 0, "host": f"127.0.0.1:{p[3]}"}]})
end = time.monotonic() + 60
while not (admin(p[0]).command("hello")["isWritablePrimary"] and admin(p[3]).command("hello")["isWritablePrimary"] and
           all(admin(q).command("hello")["secondary"] for q in p[1:3])):
    if time.monotonic() > end: sys.exit("the sets did not settle")
    time.sleep(0.1)
PY
  {
    "$bin/bench/mayfly_load" --set-ports "$(IFS=,; echo "${ports[*]}")" --set-pids "$(IFS=,; echo "${set_pids[*]}")" \
      --seconds "$1" --operations "$2"
    kill -9 "${set_pids[@]}"
    wait "${set_pids[@]}" 2>/dev/null || true
    set_pids=()
    echo
    setup_npm "$ROOT/tests/drivers/node" >&2
    NODE_MODULES=$NODE_MODULES node "$ROOT/bench/failover.mjs" "$bin/mayflyd" "$data/failover" "$3"
  } | tee "$data/sets.md"
}
