# How scripts/test runs the Catch2 programs. Sourced by it, not run.
# shellcheck shell=bash

# units_of FOLDER TARGET: the programs that are built there now, one a line: all, or what the target is made of. One of
# a target that is gone may still be in the folder, as old as it is.
units_of() {
  local known made
  known=$(ninja -C "$1" -t targets all | sed -nE 's|^tests/([a-z0-9_]+_test): CXX_EXECUTABLE_LINKER.*|\1|p')
  if [ "$2" != all ]; then
    made=$(ninja -C "$1" -t query "tests/$2" | grep -oE '[a-z0-9_]+_test$' | sort -u)
    known=$(grep -xF "$made" <<<"$known")
  fi
  sort -u <<<"$known"
}

# run_units FOLDER TARGET: every Catch2 program there, two at a time, in a folder of their own that stays if one fails;
# counts test cases. The second time (steps.sh) those that failed, one after the other.
run_units() {
  local p=0 f=0 t counts at_once=2 programs=() reports=$logs/units-$(basename "$1")
  if [ -n "${MAYFLY_AGAIN:-}" ]; then
    at_once=1
    mapfile -t programs < <(grep -v '^\.' "$MAYFLY_AGAIN" | cut -f1)
    for t in "${programs[@]}"; do mv "$reports/$(basename "$t")" "$reports/$(basename "$t").first"; done
  else
    rm -rf "$reports"
    mkdir -p "$reports"
    mapfile -t programs < <(units_of "$1" "$2" | sed "/./!d; s|^|$1/tests/|")
  fi
  # shellcheck disable=SC2016  # for the shell that is called
  [ ${#programs[@]} -eq 0 ] || printf '%s\0' "${programs[@]}" |
    python3 "$ROOT/tests/golden/own.py" run xargs -0 -n 1 -P $at_once sh -c '
      timeout 900 "$1" --reporter xml >"$0/$(basename "$1")" 2>&1
      status=$?
      echo $status >"$0/$(basename "$1").status"
      [ $status = 0 ]' "$reports" || true
  for t in "${programs[@]}"; do
    echo "--- $t"
    counts=$(count_unit "$reports/$(basename "$t")")
    if [ "${counts#* }" -gt 0 ]; then
      explain_unit "$reports/$(basename "$t")"
      printf '%s\t%s\t%s\n' "$t" "${counts% *}" "${counts#* }" >>"${MAYFLY_FAILED:-/dev/null}"
    fi
    p=$((p + ${counts% *})) f=$((f + ${counts#* }))
  done
  [ "$f" -eq 0 ] || echo . >>"${MAYFLY_FAILED:-/dev/null}"
  echo "units: $p passed, $f failed"
  [ "$f" -eq 0 ] && [ "$p" -gt 0 ]
}

# count_unit REPORT: "PASSED FAILED". One that ended early, that did not end with 0, that has looked at nothing, or of
# which a sanitizer says something, has failed.
count_unit() {
  local line p=0 f=0 status
  line=$(grep -oE '<OverallResultsCases successes="[0-9]+" failures="[0-9]+"' "$1" 2>/dev/null | tail -1 || true)
  if [ -n "$line" ]; then
    p=$(grep -oE 'successes="[0-9]+' <<<"$line" | grep -oE '[0-9]+')
    f=$(grep -oE 'failures="[0-9]+' <<<"$line" | grep -oE '[0-9]+')
  fi
  status=$(cat "$1.status" 2>/dev/null || echo none)
  ! grep -qE 'ERROR: (Address|Leak)Sanitizer|runtime error:|WARNING: ThreadSanitizer' "$1" || f=$((f + 1))
  if [ "$f" -eq 0 ] && { [ "$status" != 0 ] || [ "$p" -eq 0 ]; }; then f=1; fi
  echo "$p $f"
}

# explain_unit REPORT: what it says of failures, and how the program ended.
explain_unit() {
  local faults='<(Failure|Exception|FatalErrorCondition)' status
  faults+='|<Expression success="false"|ERROR: |runtime error|WARNING: ThreadSanitizer|SKIPPED'
  status=$(cat "$1.status" 2>/dev/null || echo unknown)
  grep -E "$faults" -A 30 "$1" | head -200 || true
  grep -q '<OverallResultsCases' "$1" || { tail -50 "$1"; echo "ended early"; }
  case $status in
    124) echo "it hung: its 900 s were over" ;;
    *) echo "it ended with the status $status" ;;
  esac
}
