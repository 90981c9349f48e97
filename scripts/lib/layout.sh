# What the step layout of scripts/test looks at. Sourced by it, not run.
# shellcheck shell=bash

# good, bad TEXT: what check_layout counts.
good() { layout_passed=$((layout_passed + 1)); }
bad() { printf '%s\n' "$@"; layout_failed=$((layout_failed + 1)); }

# clean COMMAND…: it finds nothing, or its output says what. Two at a time; cleaned counts them at the end.
clean() {
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || true; done
  { "$@" >"$layout_folder/$layout_commands" && touch "$layout_folder/$layout_commands.passed"; } &
  layout_commands=$((layout_commands + 1))
}
cleaned() {
  local n
  wait || true
  for ((n = 0; n < layout_commands; n++)); do
    if [ -e "$layout_folder/$n.passed" ]; then good; else bad "$(cat "$layout_folder/$n")"; fi
  done
  rm -r "$layout_folder"
}

# none WHAT TEXT: nothing was found.
none() { if [ -z "$2" ]; then good; else bad "$1:" "$2"; fi; }

# check_runs: each run of tests/fault is in a step, and what the lists of scripts/test name is there: a name that is
# misspelt would show when its step comes, hours later, or never in a list that takes runs out of another.
check_runs() {
  local t list
  for t in $(cd tests/fault && ls -- *_run.py); do
    case " ${CRASH_RUNS[*]} ${SET_RUNS[*]} ${CHAOS_RUNS[*]} " in
      *" ${t%_run.py} "*) good ;;
      *) bad "no step runs tests/fault/$t" ;;
    esac
  done
  for list in DURABILITY_RUNS CRASH_RUNS SET_RUNS CHAOS_RUNS ALONE_RUNS NOT_JUNK ASAN_RUNS; do
    local -n runs=$list
    for t in "${runs[@]}"; do
      if [ -f "tests/fault/${t}_run.py" ]; then good; else bad "$list: there is no tests/fault/${t}_run.py"; fi
    done
  done
}

# Every *_test.cc belongs to a target, every fault run to a step; the rooms include what they may;
# nothing in tests sleeps; no cursor points into a request; what grows is charged; scripts name what is there; the code
# is formatted; pages have the numbers of the code.
check_layout() {
  local layout_passed=0 layout_failed=0 layout_commands=0 t lock code lib=scripts/lib layout_folder
  layout_folder=$(mktemp -d)
  clean python3 tests/layout/steps_test.py  # first, because it takes longest
  # Not a pipe into grep -q: that ends early, and what is cut off counts as failed.
  local targets
  targets=$(sed 's/#.*//' tests/CMakeLists.txt)
  code=(protocol timeseries storage query ttl replication backup link security server)
  for t in $(cd tests && find * -name '*_test.cc'); do
    if grep -qE "(^| )${t//./\\.}([ )]|\$)" <<<"$targets"; then good; else
      bad "no target builds tests/$t"
    fi
  done
  # A fuzz target without a program, or seeds that no program reads, look as if something were tested.
  for t in $(cd tests/fuzz && ls *_fuzz.cc); do
    t=${t%.cc}
    if grep -q "^mayfly_fuzz($t " tests/fuzz/CMakeLists.txt; then good; else bad "no target builds tests/fuzz/$t.cc"; fi
    if [ -n "$(ls "tests/fuzz/corpus/${t%_fuzz}" 2>/dev/null)" ]; then good; else bad "$t has no corpus"; fi
  done
  for t in $(ls tests/fuzz/corpus); do
    if [ -f "tests/fuzz/${t}_fuzz.cc" ]; then good; else bad "no target reads tests/fuzz/corpus/$t"; fi
  done
  check_runs
  none "Asio outside server/, replication/ and link/" \
    "$(grep -rlE '#include <boost/(asio|beast)' protocol timeseries storage query ttl backup security || true)"
  none "RocksDB headers outside storage/kv/rocks_*" "$(grep -rlE '#include <rocksdb/' --include='*.h' --include='*.cc' \
    "${code[@]}" | grep -v '^storage/kv/rocks_' || true)"
  # A test waits for a condition or moves the clock. What polls until a deadline, or is meant to come at any moment,
  # says so in the line.
  local sleeps='\b(u|nano)?[sS]leep(_for|_until)?\(|setTimeout\(|Event\(\)\.wait\(|timers/promises'
  local kinds=(--include={'*.cc','*.h','*.py','*.js','*.mjs','*.c','*.go','*.java','*.rs',run})
  none "a test sleeps" "$(grep -rnE "$sleeps" tests "${kinds[@]}" | grep -v node_modules |
    grep -vE 'sleeps: (polls until a deadline|a random moment)' || true)"
  # shellcheck disable=SC2046
  clean python3 $lib/check_clock_verdicts.py \
    $(git ls-files tests | grep -E '\.(py|cc|h|c|js|mjs|go|java|rs|pl|php|sh)$|/run$')
  # Nothing of this machine in them: `npm ci` asks the registry that it is configured for, and checks the digests.
  for t in $(git ls-files '*package.json'); do
    lock=${t%.json}-lock.json
    if [ -f "$lock" ] && ! grep -q '"resolved"' "$lock" &&
      [ "$(grep -c '^ *"integrity": "sha512-' "$lock")" = "$(grep -c '^    "node_modules/' "$lock")" ]; then good; else
      bad "$t needs a package-lock.json without addresses, and with a digest of each package:" \
        "npm install --package-lock-only --omit-lockfile-registry-resolved"
    fi
  done
  none "a file in a folder of all, under a name known in advance" \
    "$(grep -rnE '(/tmp|\$\{?TMPDIR[^ /]*)/[a-z]' scripts docker | grep -v mktemp || true)"
  none "random bytes, and nobody asks whether there are any" \
    "$(grep -rnE '^ *(\(void\) ?)?RAND_(priv_)?bytes\(.*\);$' --include='*.h' --include='*.cc' "${code[@]}" || true)"
  clean python3 $lib/check_io_loops.py server/*/*.cc
  # shellcheck disable=SC2046
  clean python3 $lib/check_coroutines.py $(find "${code[@]}" tests bench -name '*.cc' -o -name '*.h')
  # Arguments that are accepted and then dropped.
  # shellcheck disable=SC2046
  clean python3 $lib/check_arguments.py $(find "${code[@]}" -name '*.h' -o -name '*.cc')
  # Names out of BSON that nobody has looked at.
  # shellcheck disable=SC2046
  clean python3 $lib/check_names.py $(find "${code[@]:1}" -name '*.cc')
  # shellcheck disable=SC2046
  clean python3 $lib/check_python.py $(git ls-files '*.py')
  # shellcheck disable=SC2046
  clean python3 $lib/check_lifetimes.py $(find "${code[@]}" -name '*.h' -o -name '*.cc')
  clean python3 $lib/check_growth.py query/{expression,match,projection,update,sort,pipeline}/*.cc
  # Tables that a client could fill with names of one hash.
  # shellcheck disable=SC2046
  clean python3 $lib/check_hashes.py $(git ls-files -co --exclude-standard "${code[@]/%//*.cc}" "${code[@]/%//*.h}")
  # What would break a build of sources together, or change what they call.
  # shellcheck disable=SC2046
  clean python3 $lib/check_unity.py $(git ls-files -co --exclude-standard "${code[@]/%//*.cc}" "${code[@]/%//*.h}" \
    tests/unit)
  # The texts that the faults of tests/mutants replace are where they were.
  clean python3 tests/mutants/run.py --check
  clean python3 $lib/check_tree.py include names length pages functions docstrings format log_ids
  # What these scripts must find, and pages that say what the code says.
  for t in tests/layout/*_test.py; do [ "$t" = tests/layout/steps_test.py ] || clean python3 "$t"; done
  cleaned
  echo "layout: $layout_passed passed, $layout_failed failed"
  return $((layout_failed > 0))
}
