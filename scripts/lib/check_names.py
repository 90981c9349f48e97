#!/usr/bin/env python3
"""Finds text of a client that becomes a field name, a C string, a namespace or the name of an index without anybody having looked at it. A NUL in a
name makes the bytes behind it types and lengths: memory of others in a reply, or a broken document on disk.

Looked for in each function:
  - a string out of BSON (x.String(), in.String("…"), in.StringOr, in.OptString), or a variable that was made of one, as the name of an Append…,
    OpenDocument, OpenArray or a hand-made BsonElement;
  - the same in a variable or member that is a namespace or a name (…from, …collection, …db, …coll, …view_on, …index_name);
  - the same handed to a function that takes paths or names (Exclude, Add, …Path, …Namespace), unless that function is known to look;
  - a name that is written past AppendCString: .append(name).push_back('\\0').
A function that looks (at '\\0', or by one of CHECKS; for a namespace by one of NAMESPACE_CHECKS) is clean. Where another function has looked before, the line, or the one above it, says
`check_names: who`. Prints the places; the exit status is 1 when there are any. Usage: check_names.py FILE…"""
import re
import sys

# Refuse NUL, each with an error of its own.
CHECKS = ("'\\0'", "ParseFieldPath(", "SplitPath(", "ParsePath(", "ValidateNamespace(", "ValidateNewNamespace(", "ValidateDatabaseName(", "CheckIndexName(",
          "MakeNamespace(", "CheckVariableName(", "ParseOnExpire(", "BeforeNul(")
NAMESPACE_CHECKS = ("ValidateNamespace(", "ValidateNewNamespace(", "ValidateDatabaseName(", "CheckIndexName(", "MakeNamespace(", "CheckName(", "ParseOnExpire(")
SOURCE = r"(?:[\w.\->\[\]()\"]*\.String\(\)|\*?\b\w+\.(?:String|StringOr|OptString)\(\s*\"[^\"]*\"[^()]*\))"
NAMED = re.compile(r"\b(?:Append(?:Null|Array|Binary|Regex|Decimal|Timestamp|ObjectId|StringLike)?|OpenDocument|OpenArray)\(\s*(?:std::string(?:_view)?\()?\s*([^,()]*(?:\(\))?[^,()]*)")
ASSIGNED = re.compile(r"((?:[\w]+(?:\.|->))*\w+)\s*(?:=|\(|\{)\s*(?:std::string(?:_view)?\()?" + SOURCE)
NAMESPACE = re.compile(r"(?:^|[._>])(?:from|collection|coll|db|view_on|\w*index_name)$")
TAKES_NAME = re.compile(r"\b(?:Exclude|Add|\w*Path|\w*Namespace)\(\s*(?:std::string(?:_view)?\()?" + SOURCE)
ELEMENT = re.compile(r"(?:push_back|emplace_back)\(\s*\{?\s*" + SOURCE + r"\s*,\s*\w+")
PAST_THE_DOOR = re.compile(r"append\(\s*(?:name|path|field)\w*\s*\)\s*\.push_back\(\s*'\\0'")


def functions(text):
    """(offset, text) of each outermost block that is no namespace, with what stands before it."""
    depth, begin, opened, last = 0, 0, [], 0
    for m in re.finditer(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{}]|;", text, re.S):
        t = m.group()
        if t == "{":
            head = text[last:m.start()]
            outer = re.search(r"\bnamespace\b[\w: ]*$|\bextern \"C\"\s*$", head)
            klass = re.search(r"\b(?:class|struct)\b[^;(){}]*$", head)
            opened.append("outer" if (outer or klass) and depth == 0 else "inner")
            if opened[-1] == "inner":
                if depth == 0:
                    begin = last
                depth += 1
            last = m.end()
        elif t == "}":
            if opened and opened.pop() == "inner":
                depth -= 1
                if depth == 0:
                    yield begin, text[begin:m.end()]
            last = m.end()
        elif t == ";":
            last = m.end()


def without_comments(s):
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), s, flags=re.S)


def check(path):
    text = open(path).read()
    lines = text.split("\n")
    found = []

    def note(offset, what):
        n = text.count("\n", 0, offset)
        if not any("check_names:" in lines[i] for i in range(max(0, n - 2), n + 1)):
            found.append(f"{path}:{n + 1}: {what}: {lines[n].strip()}")

    for begin, body in functions(text):
        code = without_comments(body)
        for m in PAST_THE_DOOR.finditer(code):
            note(begin + m.start(), "a name is written past AppendCString")
        tainted = {m.group(1) for m in ASSIGNED.finditer(code) if not m.group(1).startswith(("return", "if", "std"))}
        if not any(c in code for c in NAMESPACE_CHECKS):
            copies = re.compile(r"((?:\w+(?:\.|->))*\w+)\s*=\s*(?:" + "|".join(re.escape(t) for t in sorted(tainted) or ["@"]) + r");")
            for m in [*ASSIGNED.finditer(code), *copies.finditer(code)]:
                if NAMESPACE.search(m.group(1)):
                    note(begin + m.start(), "a string becomes a name or a namespace")
        if any(c in code for c in CHECKS):
            continue
        for m in NAMED.finditer(code):
            name = m.group(1).strip()
            # The only argument of an array's Append is a value.
            rest = code[m.end():m.end() + 1]
            is_name = rest == "," or code[m.start():].startswith("Open")
            if is_name and "==" not in name and (name in tainted or re.search(r"\.String\(\)", name)):
                note(begin + m.start(), "a string becomes a field name")
        for m in ELEMENT.finditer(code):
            note(begin + m.start(), "a string becomes the name of an element")
        for m in TAKES_NAME.finditer(code):
            note(begin + m.start(), "a string is taken for a path or a namespace")
    return found


if __name__ == "__main__":
    bad = [line for path in sys.argv[1:] for line in check(path)]
    if bad:
        print("\n".join(bad))
    sys.exit(bool(bad))
