"""Runs the parts of a driver test: functions, one after the other."""

import sys
import traceback


def run_all(name, parts):
    """Prints what failed, and the line that scripts/test reads; ends the program."""
    passed = failed = 0
    for part in parts:
        try:
            part()
            passed += 1
        except Exception:
            failed += 1
            print(f"FAIL {part.__name__}")
            traceback.print_exc()
    print(f"{name}: {passed} passed, {failed} failed")
    sys.exit(failed != 0)
