"""The text of a golden file as a list of directives, which run.py describes and runs. What would look like a test and
be none is refused: Malformed.
"""

import re
from pathlib import Path

DIRECTIVES = ("only", "clock", "advance", "sweep", "setup", "command", "keep", "eventually", "expect-fail")
# Behind `----`: how a reply is compared.
EXACT, HAS, ROWS, UNORDERED = "", "has", "rows", "rows unordered"
ENDING = ".test"


class Malformed(Exception):
    """A line that a golden file must not have. `line`: its number."""

    def __init__(self, line, why):
        super().__init__(why)
        self.line = line


def files(names):
    """The golden files that are named, or lie in folders that are, in order; an error for each other file in those,
    which nobody would miss: (files, errors)."""
    out, errors = [], []
    for name in names:
        path = Path(name)
        if not path.is_dir():
            out.append(path)
            continue
        for p in sorted(path.rglob("*")):
            if p.suffix == ENDING and p.is_file():
                out.append(p)
            elif p.is_file() and p.suffix not in (".py", ".pyc"):
                errors.append(f"{p}: no golden file, because its name does not end in {ENDING}")
    return out, errors


def parse(text):
    """[(line number, directive, argument, how its reply is compared or None, expected text or None)]"""
    lines = text.split("\n")
    out, i = [], 0
    while i < len(lines):
        line = lines[i]
        if not line.strip() or line.startswith("#"):
            i += 1
            continue
        start, directive = i + 1, line.split(" ", 1)[0]
        if directive not in DIRECTIVES:
            raise Malformed(start, f"unknown directive: {line}")
        argument = line[len(directive) :]
        i += 1
        kind = expected = None
        if directive in ("setup", "command", "eventually"):
            while i < len(lines) and _goes_on(lines[i]) and not lines[i].startswith("----"):
                argument += "\n" + lines[i]
                i += 1
            if i < len(lines) and lines[i].startswith("----"):
                kind, expected, compared = lines[i][4:].strip(), "", i + 1
                i += 1
                while i < len(lines) and _goes_on(lines[i]):
                    if not lines[i].startswith("#"):
                        expected += lines[i] + "\n"
                    i += 1
                _look_at_reply(compared, directive, argument.strip(), kind, expected)
        out.append((start, directive, without_comments(argument).strip(), kind, expected))
    return out


def _goes_on(line):
    """It is part of the directive above it."""
    return line.strip() and not any((line + "\n").startswith((f"{d} ", f"{d}\n")) for d in DIRECTIVES)


def _look_at_reply(line, directive, argument, kind, expected):
    if directive == "setup":
        raise Malformed(line, "the reply of a setup is compared with nothing: write command")
    if kind not in (EXACT, HAS, ROWS, UNORDERED):
        raise Malformed(
            line, f"unknown comparison: ---- {kind}; write ----, ---- has, ---- rows or ---- rows unordered"
        )
    if kind in (ROWS, UNORDERED):
        if re.match(r"error\s", argument):
            raise Malformed(line, "an error has no cursor, thus no rows: write ---- or ---- has")
    elif not expected.strip():
        raise Malformed(line, "the expected reply is empty: write it, or leave out the line")


def without_comments(text):
    """The same without ` # …` at the ends of lines."""
    return "\n".join(re.sub(r"\s+#\s[^\"]*$", "", l) for l in text.split("\n"))


def expected_error(argument):
    """(code or 0, code name or None, the rest of the argument) of `error [CODE] [NAME] …`; None for another command."""
    m = re.match(r"error(?:\s+(\d+))?(?:\s+(?!db=|txn=)([A-Za-z]\w*))?\s+", argument)
    return m and (int(m.group(1) or 0), m.group(2), argument[m.end() :])


def wrong_error(reply, code, name):
    """None, or what is wrong with the error in a reply: the command's own, else that of its first document, else that
    of its write concern. `code`: 0 for any; `name`: None for any."""
    if reply.get("ok") != 1:
        error, where = reply, "the reply"
    elif reply.get("writeErrors"):
        error, where = reply["writeErrors"][0], "the first entry of writeErrors"
    else:
        error, where = reply.get("writeConcernError") or {}, "writeConcernError"
    if not error.get("code") or code and error["code"] != code:
        return f"want error {code or 'of any code'}, got {error.get('code', 'none')}"
    if name and "codeName" not in error:
        return f"want code name {name}, but {where} has none: give its code alone"
    if name and error["codeName"] != name:
        return f"want code name {name}, got {error['codeName']}"
    return None if error.get("errmsg") else "an error without errmsg"
