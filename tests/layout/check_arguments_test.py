#!/usr/bin/env python3
"""scripts/lib/check_arguments.py finds arguments that are read and dropped, and no others."""

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/lib/check_arguments.py"


def command(body, members="bool a = false;\n"):
    return (
        f"struct Args {{\n  {members}}};\nResult<void> Run(const CommandRequest& req) {{\n  ArgReader in(req);\n"
        f"{body}\n  return in.Finish();\n}}\n"
    )


FAULTS = {
    "a statement": command('  in.OptBool("bypass");'),
    "behind another": command('  int n = 0; in.OptBool("bypass");'),
    "of a default": command('  in.BoolOr("bypass", false);'),
    "over two lines": command('  in.LooseBoolOr("bypass",\n                 false);'),
    "behind a condition": command('  if (update) in.OptBool("bypass");'),
    "behind else": command('  if (update)\n    n = 1;\n  else in.OptBool("bypass");'),
    "cast away": command('  (void)in.Any("bypass");'),
    "ignored without a reason": command('  in.Ignore("bypass");'),
    "a reason that is none": command('  in.OptBool("bypass");  // of a router'),
    "a reader that is handed in": 'void Read(ArgReader& given) {\n  given.OptBool("bypass");\n}\n',
    "through a pointer": 'void Read(ArgReader* given) {\n  ArgReader& in = *given;\n  in.OptBool("bypass");\n}\n',
    "a variable": command('  const bool bypass = in.BoolOr("bypass", false);'),
    "an optional": command('  std::optional<bool> bypass = in.OptBool("bypass");\n  n = 1;'),
    "a variable that another function has, too": command('  auto bypass = in.OptBool("bypass");')
    + "bool Other(bool bypass) {\n  return bypass;\n}\n",
    "a member": command('  Args args;\n  args.a = in.BoolOr("a", false);'),
    "a member that is set elsewhere, too": command('  Args args;\n  args.a = true;\n  args.a = in.BoolOr("a", false);'),
}
CLEAN = {
    "used": command('  if (in.BoolOr("bypass", false)) n = 1;'),
    "a variable that is used": command('  const bool bypass = in.BoolOr("bypass", false);\n  Use(bypass);'),
    "a member that is used": command('  Args args;\n  args.a = in.BoolOr("a", false);\n  Use(args.a);'),
    "a member that is compared": command('  Args args;\n  args.a = in.BoolOr("a", false);\n  if (args.a == 1) n = 1;'),
    "a member that the struct's own function uses": command(
        '  Args args;\n  args.a = in.BoolOr("a", false);', "bool a = false;\n  bool has() const { return a; }\n"
    ),
    "passed on": command('  Use(in.OptBool("bypass"));'),
    "returned": 'bool Read(ArgReader& in) {\n  return in.BoolOr("bypass", false);\n}\n',
    "refused": command('  in.NotSupported("bypass");'),
    "checked and kept by the reader": command("  in.SimpleCollation();"),
    "a reason": command('  in.OptBool("bypass");  // unused: of a router'),
    "a reason above": command('  // unused: of a router\n  in.Ignore("bypass");'),
    "another object's": command('  stream.Any("bypass");'),
    "a comment": command('  // as in.OptBool("bypass"); has it'),
}

passed = failed = 0
with tempfile.TemporaryDirectory() as folder:
    for cases, want in ((FAULTS, 1), (CLEAN, 0)):
        for what, text in cases.items():
            file = Path(folder) / "command.cc"
            file.write_text("namespace mayfly {\n" + text + "}\n")
            r = subprocess.run([sys.executable, SCRIPT, file], capture_output=True, text=True)
            if r.returncode == want and not r.stderr:
                passed += 1
            else:
                failed += 1
                print(f"FAIL {what}: {r.stdout + r.stderr or 'not found'}")
    # A member is used where any file reads it.
    header, source = Path(folder) / "args.h", Path(folder) / "command.cc"
    source.write_text(command('  Args args;\n  args.a = in.BoolOr("a", false);'))
    header.write_text("inline bool Reads(const Args& args) { return args.a; }\n")
    if subprocess.run([sys.executable, SCRIPT, source, header], capture_output=True).returncode == 0:
        passed += 1
    else:
        failed += 1
        print("FAIL a member that another file reads")
print(f"check_arguments: {passed} passed, {failed} failed")
sys.exit(failed > 0)
