#!/usr/bin/env bash
# fuzz_one.sh TARGET SECONDS: replays the kept corpus, then fuzzes for a while. New inputs go to the build folder, not
# into the tree.
set -euo pipefail
name=$(basename "$1" _fuzz)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(dirname "$1")/corpus-$name
mkdir -p "$work" "$root/tests/fuzz/corpus/$name"
ASAN_OPTIONS=detect_leaks=1 "$1" -max_total_time="$2" -rss_limit_mb=4096 -timeout=25 -print_final_stats=0 -verbosity=0 \
  -artifact_prefix="$work/crash-" "$work" "$root/tests/fuzz/corpus/$name"
echo "fuzz $name: 1 passed, 0 failed"
