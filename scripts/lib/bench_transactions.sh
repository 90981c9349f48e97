# Sourced by scripts/bench: what transactions cost, on a set of one member. Writes $data/transactions.md.
# bench_transactions SECONDS [--instructions]: a workload's length; with the flag instructions are counted instead.
bench_transactions() {
  local bin=$ROOT/build/release port=27936 counts=()
  local command=("$bin/mayflyd" --port $port --dbpath "$data/transactions" --nounixsocket --replSet one)
  if [ "$2" = --instructions ]; then
    command=(valgrind --tool=callgrind --instr-atstart=no "--callgrind-out-file=$data/counts" "${command[@]}")
    counts=(--instructions "$data/counts")
  fi
  "${command[@]}" >"$data/transactions.log" 2>&1 &
  set_pids=($!)
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 "${set_pids[0]}" || die "the member did not start: $(tail -3 "$data/transactions.log")"
  done
  setup_python
  "$PYTHON" - "$port" <<'PY'
import sys, time, pymongo
port = int(sys.argv[1])
admin = pymongo.MongoClient("127.0.0.1", port, directConnection=True).admin
admin.command("replSetInitiate", {"_id": "one", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]})
end = time.monotonic() + 60
while not admin.command("hello")["isWritablePrimary"]:
    if time.monotonic() > end: sys.exit("the set did not settle")
    time.sleep(0.1)
PY
  "$bin/bench/mayfly_load" --port $port --pid "${set_pids[0]}" --transactions --seconds "$1" "${counts[@]}" |
    tee "$data/transactions.md"
  kill "${set_pids[@]}"
  wait "${set_pids[@]}" 2>/dev/null || true
  set_pids=()
}
