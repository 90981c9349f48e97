# How scripts/test runs a step, counts it and tries again what failed. Sourced by it, not run.
# shellcheck shell=bash
#
# A step that counts prints "…: N passed, N failed" among its last lines; any other counts as one. Its output is in
# $logs/NAME.log, its counts in NAME.count, its seconds in NAME.time.
#
# forgive=1: a step that failed is run once more, alone. It counts as passed if it passes then, and is told as FLAKY,
# with the log of the first time; builds and what only reads the code are not tried again. A step that can run a part of
# itself (a program, a file, a part of a fault run) appends a line for each part that failed to the file that
# MAYFLY_FAILED names: name, what passed in it, what failed, with tabs between; and a line "." when it has come to its
# last part. With MAYFLY_AGAIN set to such a file it runs only what stands there. It is run as a whole if it ended
# before its last part, if more failed than the parts say, or if one of them is called "*".
# remember_in FOLDER: what has passed is noted there and not run again.
# A step that failed says what the machine lacked meanwhile, if it did: disk, memory, a port. That changes no verdict.
# A step that leaves no counts has failed: its shell was ended, or could not write them. A script that is interrupted or
# ends before its last step has failed, too, and says so where its summary would be.
passed=0 failed=0
failures=() flaky=() lacking=() skipped=()
remember='' tree='' changed=''
declare -A commands=()
waiting=() pids=()

# read_arguments ARGUMENT…: sets steps, forgive, again and whole (full was asked for), from the names in GATE and FULL.
# A name that is not known is told before anything is done: its turn may come hours later.
read_arguments() {
  local a
  steps=() forgive=1 again=0 whole=0
  for a in "$@"; do
    case $a in
      --strict) forgive=0 ;;
      --again) again=1 ;;
      -*) die "unknown option '$a': --strict --again" ;;
      quick) steps+=(layout unit golden) ;;
      full) steps+=("${FULL[@]}") forgive=0 whole=1 ;;
      *)
        case " ${FULL[*]} " in
          *" $a "*) steps+=("$a") ;;
          *) die "unknown step '$a': quick full ${FULL[*]}" ;;
        esac ;;
    esac
  done
  [ ${#steps[@]} -gt 0 ] || steps=("${GATE[@]}")
}

# only_one FILE: ends the script if another one holds it: logs, counts and builds of a checkout are for one at a time.
# The system takes the lock from a script that has ended, however it did: nothing that this one starts may hold
# descriptor 9.
only_one() {
  mkdir -p "$(dirname "$1")"
  exec 9>"$1"
  flock -n 9 || die "another scripts/test runs in this checkout, with the same logs and builds: wait for it, or end it"
}

# told_when_ended: whatever ends the script, its last line says what has passed and failed; that it was ended is a
# failure, and no command can keep it from ending by an interrupt that it takes for itself.
told_when_ended() {
  trap 'ended_by=$?; trap - EXIT; ended_early' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
}
ended_early() {
  set +e
  trap '' INT TERM HUP
  case $ended_by in 129 | 130 | 143) failures+=("interrupted") ;; *) failures+=("ended early") ;; esac
  failed=$((failed + 1))
  summary
  [ "$ended_by" -ne 0 ] || ended_by=1
  exit "$ended_by"
}

# own_logs FOLDER: sets logs. What an earlier run has left there of its verdicts would be taken for this one's.
own_logs() {
  logs=$1
  mkdir -p "$logs"
  rm -f "$logs"/*.{count,time,failed,again,lacks,skipped}
}

# step NAME COMMAND…: the command, alone.
step() {
  commands[$1]=$(printf '%q ' "${@:2}")
  if ! passed_before "$1"; then run_step "$1"; fi
  settle "$1"
}

# beside NAME COMMAND…: a step that mostly waits, or uses one processor, at once with one other of its kind; together
# waits for all of them.
beside() {
  local ended p left=()
  commands[$1]=$(printf '%q ' "${@:2}")
  waiting+=("$1")
  passed_before "$1" && return
  if [ ${#pids[@]} -ge 2 ]; then
    wait -n -p ended "${pids[@]}" || true
    for p in "${pids[@]}"; do [ "$p" = "$ended" ] || left+=("$p"); done
    pids=("${left[@]}")
  fi
  run_step "$1" 9>&- &
  pids+=($!)
}

together() {
  local name
  [ ${#pids[@]} -eq 0 ] || wait "${pids[@]}" || true
  pids=()
  for name in "${waiting[@]}"; do settle "$name"; done
  waiting=()
}

# run_step NAME [again]: the step's command, a line about it, and its counts in a file beside the log.
run_step() {
  local name=$1 start=$SECONDS log=$logs/${1// /-}.log status=0 p f before=0 kills
  local parts=${log%.log}.failed lacks=${log%.log}.lacks mark
  export MAYFLY_FAILED=$parts MAYFLY_AGAIN=
  if [ -n "${2:-}" ]; then
    [ ! -f "$log" ] || mv "$log" "${log%.log}.first.log"
    if parts_are_all "$name"; then
      # What passed the first time outside of the parts that are run again.
      read -r before _ < <(counted "${log%.log}.count")
      before=$((before - $(awk -F'\t' '{n += $2} END {print n + 0}' "$parts")))
      mv "$parts" "${log%.log}.again"
      MAYFLY_AGAIN=${log%.log}.again
    fi
  else
    rm -f "$lacks" "${log%.log}.skipped"
  fi
  rm -f "${log%.log}.count" "$parts"
  kills=$(lacked kills)
  # What it leaves behind would run beside the next step, or beside its own second try.
  mark=$(cat /proc/sys/kernel/random/uuid)
  # Not behind ||, in which a function would go on after a command that fails.
  set +e
  (set -e; export TESTS_STEP=$mark; eval "${commands[$name]}") >"$log" 2>&1 9>&-
  status=$?
  set -e
  python3 "$ROOT/tests/golden/own.py" end "$mark" >>"$log" 2>&1 || true
  p=$(tail -n 20 "$log" | grep -oE '[0-9]+ passed' | tail -1 | cut -d' ' -f1 || true)
  f=$(tail -n 20 "$log" | grep -oE '[0-9]+ failed' | tail -1 | cut -d' ' -f1 || true)
  if [ -z "$p" ]; then p=$((status == 0)); f=$((status != 0)); fi
  f=${f:-0}
  [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
  [ $((p + f)) -gt 0 ] || f=1  # a run that looked at nothing
  p=$((p + before))
  # Where these cannot be written settle says so.
  echo "$p $f" >"${log%.log}.count" || true
  echo $((SECONDS - start)) >"${log%.log}.time" || true
  if [ "$f" -gt 0 ]; then
    local word=FAIL
    # The word FAIL is for what counts: a step that is tried again has not failed yet.
    [ -n "${2:-}" ] || ! forgiven "$name" || word=no
    printf '  %-4s %-28s %4d s  %d passed, %d failed; the end of %s:\n' \
      "$word" "$name" $((SECONDS - start)) "$p" "$f" "${log#"$ROOT"/}"
    tail -n 60 "$log" | sed 's/^/       | /' || true
    lacked lacks "$ROOT" "${kills:-0}" "$log" | tee -a "$lacks" | sed 's/^/       /' || true
  else
    printf '  ok   %-28s %4d s  %d passed\n' "$name" $((SECONDS - start)) "$p"
  fi
  # A second try looks at some parts only.
  grep -hoE 'SKIPPED: .*' "$log" >>"${log%.log}.skipped" || true
  sort -u "${log%.log}.skipped" | sed 's/^/       /' || true
}

# lacked ARGUMENT…: what tests/golden/own.py says.
lacked() { python3 "$ROOT/tests/golden/own.py" "$@" || true; }

# counted FILE: "PASSED FAILED", as a step has left them; false when it has not.
counted() {
  local p='' f=''
  read -r p f <"$1" || true
  [[ $p =~ ^[0-9]+$ && $f =~ ^[0-9]+$ ]] && echo "$p $f"
} 2>/dev/null

# parts_are_all NAME: what has failed in the step is in the parts that it has noted, and in nothing else.
parts_are_all() {
  local file=$logs/${1// /-} f
  [ -s "$file.failed" ] && f=$(counted "$file.count") || return 1
  f=${f#* }
  awk -F'\t' -v f="$f" '$1 == "*" {whole = 1} $1 == "." {end = 1} {n += $3} END {exit !(end && !whole && n == f)}' \
    "$file.failed"
}

# forgiven NAME: the step may have failed of what ran beside it.
forgiven() {
  case $1 in layout | headers | build*) return 1 ;; esac
  [ "$forgive" = 1 ]
}

# settle NAME: counts a step that has ended; what failed is tried again first, with nothing beside it.
settle() {
  local name=$1 p f file=$logs/${1// /-} parts line
  rm -f "$file.again"
  take_counts "$name"
  if [ "$f" -gt 0 ] && forgiven "$name"; then
    printf '  once more, alone: %s\n' "$name"
    run_step "$name" again
    take_counts "$name"
    parts=
    [ ! -f "$file.again" ] || parts=" ($(grep -v '^\.' "$file.again" | cut -f1 | sed "s|^$ROOT/||" | paste -sd' '))"
    [ "$f" -gt 0 ] || flaky+=("$name$parts, ${file#"$ROOT"/}.first.log")
  fi
  passed=$((passed + p)) failed=$((failed + f))
  if [ -s "$file.lacks" ]; then
    while read -r line; do lacking+=("$name: $line"); done < <(sort -u "$file.lacks")
  fi
  if [ -s "$file.skipped" ]; then
    while read -r line; do skipped+=("$name: $line"); done < <(sort -u "$file.skipped")
  fi
  if [ "$f" -gt 0 ]; then
    failures+=("$name")
  elif [ -n "$remember" ] && still_the_tree; then
    mkdir -p "$remember"
    # Not by its name until it is whole.
    { cp "$file.skipped" "$remember/" && cp "$file.count" "$remember/new" &&
      mv "$remember/new" "$remember/${file##*/}.count"; } || echo "  $name has passed, which could not be noted"
  fi
}

# take_counts NAME: sets p and f of settle.
take_counts() {
  local counts
  if counts=$(counted "$logs/${1// /-}.count"); then
    p=${counts% *} f=${counts#* }
  else
    p=0 f=1
    printf '  FAIL %s: it has left no counts: its shell was ended, or could not write them\n' "$1"
    while read -r line; do lacking+=("$1: $line"); done < <(lacked lacks "$ROOT")
  fi
}

# passed_before NAME: this very tree has passed the step, as $remember says.
passed_before() {
  local file=${1// /-}.count
  [ -n "$remember" ] && [ -f "$remember/$file" ] && still_the_tree || return 1
  counted "$remember/$file" >"$logs/$file" || return 1
  rm -f "$logs/${1// /-}".{time,log,lacks,skipped}
  cp "$remember/${1// /-}.skipped" "$logs/" || true
  touch "$logs/${1// /-}.log"
  printf '  ok   %-28s earlier, on this very tree\n' "$1"
}

# remember_in FOLDER: notes in a part of it what passes with this tree, these settings and this compiler.
remember_in() {
  tree=$(hash_of_tree)
  remember=$1/$tree-$(hash_of_settings)
}

# hash_of_tree: names what is in the checkout now, committed or not, and what of it may be executed.
hash_of_tree() {
  { git ls-files -z --cached --others --exclude-standard | sort -zu |
    xargs -0 sh -c 'sha256sum "$@"; stat -c "%A %n" "$@"' sh 2>/dev/null || true; } | sha256sum | cut -c1-16
}

# hash_of_settings: names what changes the meaning of a step besides: seeds, numbers of rounds, options, the compiler.
hash_of_settings() {
  { env | grep -E '^(MAYFLY_[A-Z_]*|(RC_PARAMS|MALLOC_CONF|[A-Z]+SAN_OPTIONS|C[CX]X?|C(XX|PP)?FLAGS|LDFLAGS))=' | sort
    "${CXX:-c++}" --version; } 2>/dev/null | sha256sum | cut -c1-16
}

# still_the_tree: nobody has changed it since remember_in.
still_the_tree() {
  [ "$(hash_of_tree)" = "$tree" ] && return
  [ -n "$changed" ] || printf '  the tree has changed meanwhile: what passes from now on is not remembered\n'
  changed=1
  false
}

# marked ARGUMENT…: the calling script once more, in its place, with a mark that everything it starts inherits; the
# second time it comes to here nothing happens. reaped: from then on what has the mark ends with this script, whatever
# ends that (tests/golden/own.py). Two steps, because a subshell shows the environment that its script began with.
marked() {
  [ "${TESTS_SHELL:-}" != $$ ] || return 0
  TESTS_RUN=$(cat /proc/sys/kernel/random/uuid) TESTS_SHELL=$$ exec "$BASH" "$0" "$@"
}
reaped() {
  env -u TESTS_RUN -u TESTS_SHELL setsid python3 "$ROOT/tests/golden/own.py" reap $$ "$TESTS_RUN" \
    </dev/null >/dev/null 2>&1 9>&- &
  disown
}

# summary: what each failed step said of its failures, where one looks; what passed only when it was alone; what the
# machine lacked; the slowest.
summary() {
  local name
  trap - EXIT
  for name in "${failures[@]}"; do
    grep -hE '^(FAIL|\[  FAILED  \]|.*Error:)' "$logs/${name// /-}.log" 2>/dev/null | cut -c1-600 | head -5 |
      sed "s/^/$name: /" || true
  done
  for name in "${flaky[@]}"; do printf 'FLAKY %s\n' "$name"; done
  [ ${#lacking[@]} -eq 0 ] || printf '%s\n' "${lacking[@]}" | awk '!seen[$0]++'
  for name in "${skipped[@]}"; do printf '%s\n' "$name"; done
  printf 'the slowest: '
  (cd "$logs" && for name in *.time; do [ ! -f "$name" ] || echo "$(cat "$name") s ${name%.time}"; done) | sort -rn |
    head -3 | paste -sd, | sed 's/,/, /g'
  if [ $((passed + failed)) -eq 0 ]; then failed=1 failures+=("nothing was run"); fi
  if [ ${#failures[@]} -gt 0 ]; then echo "failed: ${failures[*]}"; fi
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}
