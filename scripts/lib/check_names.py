#!/usr/bin/env python3
"""Finds a client's text that becomes a field name, a C string, a namespace or the name of an index without a check.

A NUL in a name makes a reader take the bytes behind it for types and lengths: the reply shows memory of others, or a
document on disk is broken.

Searched for in each function:
  - a string out of BSON (x.String(), in.String("…"), in.StringOr, in.OptString), or a variable made from one, as the
    name in an Append…, OpenDocument, OpenArray or a BsonElement: anywhere in the expression of the name, and also
    through a function of the same file that takes it as a name;
  - the same in a variable or member that is a namespace or a name (…from, …collection, …db, …coll, …ns, …namespace,
    …view_on, …index_name);
  - the same passed to a function that takes paths or names (Exclude, Add, …Path, …Namespace), unless that function is
    known to check;
  - a name that is written without AppendCString: .append(name).push_back('\\0').

A function that checks (for '\\0', or with one of CHECKS; for a namespace with one of NAMESPACE_CHECKS) is clean. Where
another function has checked before, the line or the one above it says `check_names: who`.

Prints the places; the exit status is 1 when there are any. Usage: check_names.py FILE…
"""

import re
import sys

from cpp_text import without_comments

# Refuse NUL, each with an error of its own.
CHECKS = (
    "'\\0'",
    "ParseFieldPath(",
    "SplitFieldPath(",
    "SplitOutputPath(",
    "SplitSpecPath(",
    "ParsePath(",
    "ValidateNamespace(",
    "ValidateNewNamespace(",
    "ValidateDatabaseName(",
    "CheckIndexName(",
    "CheckVariableName(",
    "ParseOnExpire(",
    "OpenCollection(",
    "TruncateAtNul(",
)
NAMESPACE_CHECKS = (
    "ValidateNamespace(",
    "ValidateNewNamespace(",
    "ValidateDatabaseName(",
    "CheckIndexName(",
    "CheckName(",
    "ParseOnExpire(",
    "OpenCollection(",
)
SOURCE = r"(?:[\w.\->\[\]()\"]*\.String\(\)|\*?\b\w+\.(?:String|StringOr|OptString)\(\s*\"[^\"]*\"[^()]*\))"
NAMED = re.compile(
    r"\b(?:Append(?:Null|Array|Binary|Regex|Decimal|Timestamp|ObjectId|StringLike)?|OpenDocument|OpenArray)"
    r"\(\s*(?:std::string(?:_view)?\()?\s*([^,()]*(?:\(\))?[^,()]*)"
)
ASSIGNED = re.compile(r"((?:[\w]+(?:\.|->))*\w+)\s*(?:=|\(|\{|,)\s*(?:std::string(?:_view)?\()?" + SOURCE)
NAMESPACE = re.compile(
    r"(?:^|[._>])(?:from|collection|coll|db|ns|view_on|\w+_(?:db|ns|coll|collection|namespace)|\w*index_name)$"
)
TAKES_NAME = re.compile(r"\b(?:Exclude|Add|\w*Path|\w*Namespace)\(\s*(?:std::string(?:_view)?\()?" + SOURCE)
ELEMENT = re.compile(r"(?:push_back|emplace_back)\(\s*\{?\s*" + SOURCE + r"\s*,\s*\w+")
PAST_THE_DOOR = re.compile(r"append\(\s*(?:name|path|field)\w*\s*\)\s*\.push_back\(\s*'\\0'")


def functions(text):
    """(offset, text) of each outermost block that is no namespace, with what stands before it."""
    depth, begin, opened, last = 0, 0, [], 0
    for m in re.finditer(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{}]|;", text, re.S):
        t = m.group()
        if t == "{":
            head = text[last : m.start()]
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
                    yield begin, text[begin : m.end()]
            last = m.end()
        elif t == ";":
            last = m.end()


OPENS = re.compile(
    r"\b(?:Append(?:Null|Array|Binary|Regex|Decimal|Timestamp|ObjectId|StringLike)?|OpenDocument|OpenArray)\("
)
MADE_OF = re.compile(
    r"\b(?:std::string(?:_view)?|auto) (\w+)(?: = |\(|\{)[^;]*?(?:\.String\(\)|\bin\.\w*String\w*\(\")[^;?<>=]*;"
)


def arguments(text, at):
    """The arguments of the call whose bracket is before `at`, and the offset of its end."""
    found, depth, begin = [], 0, at
    while at < len(text):
        c = text[at]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                found.append(text[begin:at])
                return found, at
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
        at += 1
    return found, at


def as_names(code, of):
    """Offsets of calls that take one of `of` (a pattern) for the name of a field, wherever it stands in their first
    argument."""
    for m in OPENS.finditer(code):
        args, _ = arguments(code, m.end())
        opens = code[m.start() :].startswith("Open")
        if (
            (opens or len(args) > 1)
            and args
            and re.search(of, re.sub(r'"[^"]*"', '""', args[0]))
            and not re.search(r"==|\?", args[0])
        ):
            yield m.start()


def name_helpers(text):
    """name -> position of the parameter that it takes for a name, of the functions of a file that do not look."""
    found = {}
    for m in re.finditer(r"\b(\w+)\(([^;{}()]*)\)(?: const)? \{", text):
        end, depth = m.end(), 1
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        body = without_comments(text[m.end() : end])
        if any(c in body for c in CHECKS):
            continue
        for i, parameter in enumerate(m[2].split(",")):
            p = re.search(r"\bstd::string(?:_view)?&? (\w+)$", parameter.strip())
            if p and any(True for _ in as_names(body, rf"^\s*{p[1]}\s*$")):
                found[m[1]] = i
    return found


def check(path):
    text = open(path).read()
    lines = text.split("\n")
    found = []
    helpers = name_helpers(text)

    def note(offset, what):
        n = text.count("\n", 0, offset)
        if not any("check_names:" in lines[i] for i in range(max(0, n - 2), n + 1)):
            line = f"{path}:{n + 1}: {what}: {lines[n].strip()}"
            if line not in found:
                found.append(line)

    for begin, body in functions(text):
        code = without_comments(body)
        for m in PAST_THE_DOOR.finditer(code):
            note(begin + m.start(), "a name is written past AppendCString")
        tainted = {m.group(1) for m in ASSIGNED.finditer(code) if not m.group(1).startswith(("return", "if", "std"))}
        if not any(c in code for c in NAMESPACE_CHECKS):
            copies = re.compile(
                r"((?:\w+(?:\.|->))*\w+)\s*=\s*(?:" + "|".join(re.escape(t) for t in sorted(tainted) or ["@"]) + r");"
            )
            for m in [*ASSIGNED.finditer(code), *copies.finditer(code)]:
                if NAMESPACE.search(m.group(1)):
                    note(begin + m.start(), "a string becomes a name or a namespace")
        if any(c in code for c in CHECKS):
            continue
        for m in NAMED.finditer(code):
            name = m.group(1).strip()
            # The only argument of an array's Append is a value.
            rest = code[m.end() : m.end() + 1]
            is_name = rest == "," or code[m.start() :].startswith("Open")
            if is_name and "==" not in name and (name in tainted or re.search(r"\.String\(\)", name)):
                note(begin + m.start(), "a string becomes a field name")
        made = "|".join([r"\.String\(\)", *(rf"(?<![.>\w]){m[1]}\b" for m in MADE_OF.finditer(code))])
        for at in as_names(code, made):
            note(begin + at, "a string becomes a field name")
        for helper, position in helpers.items():
            for m in re.finditer(rf"(?<![\w.>:]){helper}\(", code):
                args, end = arguments(code, m.end())
                if position < len(args) and code[end + 1 : end + 3] != " {" and re.search(made, args[position]):
                    note(begin + m.start(), f"a string becomes a field name in {helper}")
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
