# Sourced by scripts/build: the training run of the preset optimised.
# train: builds the preset train and runs the bench on it, which leaves build/profile. Does nothing if that is there,
# unless MAYFLY_RETRAIN is set.
train() {
  local profile=$ROOT/build/profile
  if [ -f "$profile/complete" ] && [ -z "${MAYFLY_RETRAIN:-}" ]; then return 0; fi
  # Of what mayflyd is made of; the load generator as well, so that this is the only other build.
  build train mayflyd mayfly_load
  rm -rf "$profile"
  say "training"
  train_on "$ROOT/build/train"
  touch "$profile/complete"
}

# train_on FOLDER: runs the bench's workloads, a little of each, on the server in a build folder.
train_on() (
  local data port=27937 pid=
  data=$(mktemp -d)
  trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; wait; rm -rf "$data"' EXIT
  "$1/mayflyd" --port $port --dbpath "$data/db" --nounixsocket --httpPort 0 >"$data/log" 2>&1 &
  pid=$!
  until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do
    kill -0 $pid 2>/dev/null || { cat "$data/log"; die "the server to be trained did not start"; }
  done
  # The load generator counts too, but elsewhere: it must not tell the compiler what a server does.
  load() {
    GCOV_PREFIX=$data/client timeout 600 "$1/bench/mayfly_load" --port $port --pid $pid "${@:2}" >>"$data/load" ||
      { tail -20 "$data/load" "$data/log"; die "the training run failed"; }
  }
  load "$1" --seconds 1 --connections 1,16
  load "$1" --scan 100000
  load "$1" --reap 50000
  load "$1" --trickle 2
  if grep ERRORS "$data/load"; then die "the training run had errors"; fi
  # Counts are written by a server that ends by itself.
  kill $pid
  wait $pid || die "the trained server did not end well"
  pid=
)
