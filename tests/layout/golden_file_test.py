#!/usr/bin/env python3
"""What tests/golden/golden_file.py refuses, because it would look like a test and be none."""

import sys, tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
import golden_file

REFUSED = {  # name: (text, line, what is said)
    "a reply behind setup": ('setup {"ping": 1}\n----\n{"this": "is never compared"}\n', 2, "setup"),
    "an empty reply": ('command {"ping": 1}\n----\n\n', 2, "empty"),
    "an empty reply of an error": ('command error 2 {"ping": 1}\n---- has\n# a comment\n', 2, "empty"),
    "rows of an error": ('command error 2 BadValue {"find": 1}\n---- rows\n', 2, "no cursor"),
    "rows of an error that goes on": ('command error\n2 {"find": 1}\n---- rows\n{"a": 1}\n', 3, "no cursor"),
    "a word that is no comparison": ('command {"ping": 1}\n---- is\n{"ok": 1}\n', 2, "---- is"),
    "a typing mistake in it": ('command {"ping": 1}\n---- row\n{"ok": 1}\n', 2, "---- row"),
    "more words": ('command {"ping": 1}\n---- rows ordered\n{"ok": 1}\n', 2, "---- rows ordered"),
    "an unknown directive": ('setup {"ping": 1}\n\ncommnd {"ping": 1}\n', 3, "commnd"),
    "a reply of nothing": ('clock 2030-01-01T00:00:00Z\n----\n{"ok": 1}\n', 2, "unknown directive"),
}
TAKEN = {  # name: (text, what parse gives)
    "a command": ('command {"ping": 1}\n', [(1, "command", '{"ping": 1}', None, None)]),
    "of several lines": (
        'command {"a":  # text\n  1}\n----\n# text\n{"ok": 1}\nsweep\n',
        [(1, "command", '{"a":\n  1}', "", '{"ok": 1}\n'), (6, "sweep", "", None, None)],
    ),
    "no rows": ('command {"find": "c"}\n---- rows\n\n', [(1, "command", '{"find": "c"}', "rows", "")]),
}
BAD = {"ok": 0, "code": 2, "codeName": "BadValue", "errmsg": "x"}
TWICE = {"ok": 1, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "x"}]}
LATE = {"ok": 1, "writeConcernError": {"code": 64, "codeName": "WriteConcernTimeout", "errmsg": "x"}}
ERRORS = {  # name: (reply, code, code name, what is said or None)
    "as it should be": (BAD, 2, "BadValue", None),
    "any": (BAD, 0, None, None),
    "another code": (BAD, 9, None, "want error 9, got 2"),
    "another name": (BAD, 2, "FailedToParse", "want code name FailedToParse, got BadValue"),
    "none": ({"ok": 1, "n": 1}, 0, None, "got none"),
    "without a message": ({"ok": 0, "code": 2, "codeName": "BadValue"}, 2, None, "without errmsg"),
    "of a document": (TWICE, 11000, None, None),
    "of a document, with a name": (TWICE, 11000, "NoSuchNameAtAll", "writeErrors has none"),
    "of the write concern": (LATE, 64, "WriteConcernTimeout", None),
    "of the write concern, with another name": (LATE, 64, "NoSuchNameAtAll", "got WriteConcernTimeout"),
}
ARGUMENTS = {
    '{"ping": 1}': None,
    'error {"a": 1}': (0, None, '{"a": 1}'),
    'error 2 {"a": 1}': (2, None, '{"a": 1}'),
    'error BadValue db=x {"a": 1}': (0, "BadValue", 'db=x {"a": 1}'),
    'error 2 BadValue txn=A+ {"a": 1}': (2, "BadValue", 'txn=A+ {"a": 1}'),
}
passed, wrong = 0, []


def check(ok, what):
    global passed
    passed += bool(ok)
    if not ok:
        wrong.append(what)


for what, (text, line, says) in REFUSED.items():
    try:
        check(False, f"{what}: taken as {golden_file.parse(text)}")
    except golden_file.Malformed as e:
        check(e.line == line and says in str(e), f"{what}: {e.line}: {e}")
for what, (text, want) in TAKEN.items():
    check(golden_file.parse(text) == want, f"{what}: {golden_file.parse(text)}")
for what, (reply, code, name, says) in ERRORS.items():
    got = golden_file.wrong_error(reply, code, name)
    check(got == says if None in (got, says) else says in got, f"{what}: {got}")
for argument, want in ARGUMENTS.items():
    check((golden_file.expected_error(argument)) == want, f"{argument}: {golden_file.expected_error(argument)}")
with tempfile.TemporaryDirectory() as folder:
    for name in ("a.test", "b.golden", "own.py"):
        Path(folder, name).touch()
    files, errors = golden_file.files([folder])
    check([f.name for f in files] == ["a.test"], f"files: {files}")
    check(len(errors) == 1 and "b.golden" in errors[0], f"another ending: {errors}")
for w in wrong:
    print(f"FAIL {w}")
print(f"golden_file: {passed} passed, {len(wrong)} failed")
sys.exit(bool(wrong))
