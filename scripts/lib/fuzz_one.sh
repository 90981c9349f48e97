#!/usr/bin/env bash
# fuzz_one.sh TARGET: replays the kept corpus, then fuzzes from the seed MAYFLY_SEED, or a random one: for as many
# seconds as MAYFLY_FUZZ_SECONDS says, else for a number of runs, which finds the same on every machine. New inputs go
# to the build folder, not into the tree.
set -euo pipefail
name=$(basename "$1" _fuzz)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(dirname "$1")/corpus-$name
if [ -n "${MAYFLY_FUZZ_SECONDS:-}" ]; then
  bound=-max_total_time=$MAYFLY_FUZZ_SECONDS
else
  runs=10000
  [ "$name" != config ] || runs=1000 # each writes a file, and makes all options anew
  bound=-runs=${MAYFLY_FUZZ_RUNS:-$runs}
  rm -rf "$work"
fi
mkdir -p "$work" "$root/tests/fuzz/corpus/$name"
patience=$(awk "BEGIN {print int(60 * ${MAYFLY_SLOWNESS:-1})}")  # seconds for one input: only a hang takes longer
ASAN_OPTIONS=detect_leaks=1 "$1" "$bound" -seed="${MAYFLY_SEED:-0}" -rss_limit_mb=4096 -timeout="$patience" \
  -print_final_stats=1 -verbosity=0 -artifact_prefix="$(dirname "$1")/crash-$name-" \
  "$work" "$root/tests/fuzz/corpus/$name"
echo "fuzz $name: 1 passed, 0 failed"
