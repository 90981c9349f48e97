#!/usr/bin/env python3
"""The tables of docs/privileges.md, made from tests/data/privileges.txt, which the tests hold the code to.

    privileges_page.py           writes them into the page
    privileges_page.py --check   says whether the page has them; the exit status is 1 when it has not
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/privileges.txt"
PAGE = ROOT / "docs/privileges.md"
BEGIN, END = "<!-- tables: scripts/lib/privileges_page.py -->", "<!-- end of tables -->"


def cases():
    """(section, database or "", command, needs) of each line."""
    section = ""
    for line in DATA.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line and not line.startswith("#"):
            m = re.fullmatch(r"(?:(\w+): )?(\{.*\}) \| (.*)", line)
            yield section, m[1] or "", json.loads(m[2]), m[3]


def shell(value):
    """As mongosh writes it."""
    if isinstance(value, dict):
        inner = ", ".join(
            f"{k if re.fullmatch(r'[$A-Za-z_][$A-Za-z0-9_]*', k) else repr(k)}: {shell(v)}" for k, v in value.items()
        )
        return f"{{{inner}}}"
    if isinstance(value, list):
        return "[" + ", ".join(shell(v) for v in value) + "]"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return json.dumps(value)


def place(text):
    if text == "cluster":
        return "the cluster"
    if text == "every":
        return "all databases"
    return f"`{text}`" if "." in text else f"database `{text}`"


def words(needs):
    """The needs of a line as a cell of a table."""
    ways = []
    for way in needs.split(" or "):
        parts = []
        for term in way.split():
            if term == "login":
                parts.append("a login")
                continue
            actions, at = term.lstrip("!").split("@")
            named = ", ".join(f"`{a}`" for a in actions.split(","))
            parts.append(f"{'no ' if term[0] == '!' else ''}{named} on {place(at)}")
        ways.append("; ".join(parts))
    return " **or** ".join(ways)


def tables():
    out, last = [], None
    for section, db, command, needs in cases():
        if section != last:
            out += ["", f"### {section}", "", "| command | needs |", "| --- | --- |"]
            last = section
        sent = f" to `{db}`" if db else ""
        shown = shell(command).replace("|", "\\|")
        out.append(f"| `{shown}`{sent} | {words(needs)} |")
    return "\n".join(out[1:]).replace("<db>", "db").replace("<other>", "other") + "\n"


def main():
    text = PAGE.read_text()
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    want = f"{head}{BEGIN}\n\n{tables()}\n{END}{tail}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(want)
        return 0
    if want == text:
        return 0
    print("docs/privileges.md is not what tests/data/privileges.txt says: run scripts/lib/privileges_page.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
