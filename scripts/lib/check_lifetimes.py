#!/usr/bin/env python3
"""Finds what outlives a request and points into it: the next getMore may come from another connection, and from
another user, when the memory belongs to somebody else.

From the types that live from request to request (ROOTS) the check follows all that they own: values, owning pointers
and containers of these, the bases of each class and every class derived from it. A plain pointer or reference in
there must not lead to a type of a request (OF_A_REQUEST), also as an element of a container. To share
(std::shared_ptr) is allowed. What a stage needs of its client it finds from the Operation that it is handed for each
batch. A pointer to that Operation is allowed where it is set again for the next one: in a class that has one of
ATTACHES, or that ATTACHED lists with who does it. An entry there that matches nothing any more is reported too.

A class that owns what SaveState is for (a source of documents, a pipeline, an executor) must have a SaveState or a
Park itself, to pass it on between batches: else what it owns keeps what it has pinned, and the Operation that is over.

Not seen: what lambdas in std::function capture, views of bytes, pointers behind a template's own name, classes in lower
case, and whether a function that is there does what it is for.
tests/layout/check_lifetimes_test.py shows what this script must find.

Prints the places; the exit status is 1 when there are any. Usage: check_lifetimes.py FILE…
"""

import re
import sys
from collections import defaultdict

from cpp_text import blank, body_end

ROOTS = ["CursorManager", "ClientCursor", "Transaction", "Session", "UserAccess"]
OF_A_REQUEST = [
    "BsonBuilder",
    "ClientSlot",
    "CommandContext",
    "CommandRequest",
    "Connection",
    "GenericArguments",
    "GrantedRoles",
    "HttpOrigin",
    "InnerRequests",
    "LoginState",
    "OperationReport",
    "PrivilegeSet",
    "RequestState",
    "ResolvedRoles",
    "Session",
    "UserAccess",
    "UserName",
]
# They own what their references are parts of.
OF_ITS_OWN = ["UserAccess"]
ATTACHES = re.compile(r"\b(?:SetOperation|Attach|RestoreState|Restore)\(")
ATTACHED = {
    "Entry": "CursorManager's: of a getMore, gone when that ends (CheckedOutCursor), also by an exception",
    "EvalContext": "each stage's Attach, and FindExecutor::RestoreState",
    "KeySet": "KeysThatAre, for each document",
    "Large": "null where the waiter may be gone",
    "ParallelScan": "RecordScanStage::Save ends it",
    "PipelineContext": "Pipeline::Attach",
    "PlanContext": "FindExecutor::RestoreState",
    "Transaction": "Transactions::Leave clears it, whatever happened in between",
    "Visibility": "FindExecutor::RestoreState, by SetVisibility",
    "WriteCommand": "OutWriter's lives within one batch: $out reads and writes everything in it",
    "WriteUnit::Impl": "WriteUnit's, used by a statement only: Transactions attaches it to each",
}

DEFINITION = re.compile(r"\b(?:class|struct)\s+((?:\w+::)*\w+)\s*(?:final\s*)?(?::(?!:)([^;{}()]*))?\{")
ALIAS = re.compile(r"\busing (\w+) = ([^;]+);")
TYPEDEF = re.compile(r"\btypedef\s+([^;{}]+?)\b(\w+)\s*;")
# "class Connection* c;" declares a member, not a class.
ELABORATE = re.compile(r"\b(?:class|struct)\s+(?=(?:\w+::)*\w+\s*(?:const\s*)?[*&])")
UNNAMED = re.compile(r"\b(?:struct|union)\s*\{")
SAVES = re.compile(r"\b(?:SaveState|Park)\(")
NO_MEMBER = re.compile(
    r"^\s*(?:using|friend|static|template|enum|typedef|class|struct|union|static_assert|namespace)\b"
)
OWNED = re.compile(r"\b([A-Z]\w*)\b(?!\s*(?:const\s*)?[*&])")


class Class:
    def __init__(self, path, name, outer, bases, body, line):
        self.path, self.name, self.outer, self.bases = path, name, outer, bases
        self.body, self.line = body, line
        self.members = []  # (line, type, the declaration)


def without(text, opening, closing):
    """`text` with what stands in these brackets, however deep, as spaces."""
    out, depth = [], 0
    for c in text:
        if c == closing and depth:
            depth -= 1
        out.append(c if depth == 0 or c == "\n" else " ")
        depth += c == opening
    return "".join(out)


def functions_out(text):
    """The signatures in std::function say nothing of what is kept."""
    while m := re.search(r"\bstd::(?:move_only_)?function<", text):
        depth, at = 1, m.end()
        while at < len(text) and depth:
            depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] != "-")
            at += 1
        text = text[: m.start()] + re.sub(r"[^\n]", " ", text[m.start() : at]) + text[at:]
    return text


def members(c):
    """The declarations of the class's own variables."""
    yield from variables(c.body, c.line)
    # What stands in a struct without a name.
    for m in UNNAMED.finditer(c.body):
        line = c.line + c.body.count("\n", 0, m.end())
        yield from variables(c.body[m.end() : body_end(c.body, m.end()) - 1], line)


def variables(body, start):
    flat, at = without(ELABORATE.sub(lambda m: " " * len(m.group()), body), "{", "}"), 0
    for statement in re.split(r"[;}]", flat):
        line = start + flat.count("\n", 0, at + len(statement) - len(statement.lstrip()))
        at += len(statement) + 1
        text = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", statement)
        if NO_MEMBER.match(text):
            continue
        text = functions_out(re.sub(r"\balignas\([^)]*\)|\b(?:mutable|const|inline|volatile)\b", " ", text))
        text = re.split(r"(?<![=!<>])=(?!=)|\{", text)[0]
        function = "(" in without(text, "<", ">") and "decltype" not in text
        if function or re.search(r"\boperator\b", text) or not text.strip():
            continue
        yield line, " ".join(text.split())


def read(path, text, classes, aliases):
    for m in ALIAS.finditer(text):
        aliases[m[1]].append(m[2])
    for m in TYPEDEF.finditer(text):
        aliases[m[2]].append(m[1])
    open_ = []
    for m in DEFINITION.finditer(text):
        while open_ and open_[-1][0] < m.start():
            open_.pop()
        end = body_end(text, m.end())
        outer = "::".join(c.name for _, c in open_)
        bases = [b for b in re.findall(r"\b[A-Z]\w*\b", m[2] or "")]
        c = Class(path, m[1], outer, bases, text[m.end() : end - 1], text.count("\n", 0, m.end()) + 1)
        open_.append((end, c))
        c.members = list(members(c))
        classes[m[1].split("::")[-1]].append(c)


def named(name, near, classes):
    """The classes that `name` can mean in the class `near`."""
    found = classes.get(name, [])
    inner = [c for c in found if c.path == near.path and near.name in c.outer.split("::")]
    if inner:
        return inner
    return [c for c in found if c.path == near.path] or [c for c in found if c.path.endswith(".h")]


def expanded(text, aliases):
    """With what aliases stand for beside their names."""
    for name in re.findall(r"\b[A-Z]\w*\b", text):
        for meant in aliases.get(name, []):
            if name not in re.findall(r"\w+", meant):
                text += " " + functions_out(meant) + " "
    return text


def main():
    classes, aliases, sources = defaultdict(list), defaultdict(list), {}
    for path in sys.argv[1:]:
        sources[path] = open(path, encoding="utf-8").read()
        read(path, blank(sources[path]), classes, aliases)
    derived = defaultdict(list)
    for same in classes.values():
        for c in same:
            for base in c.bases:
                derived[base].append(c)
    pointer = re.compile(
        r"\b(" + "|".join(OF_A_REQUEST) + r")\s*[*&]|"
        r"\b(?:reference_wrapper|span)<\s*(" + "|".join(OF_A_REQUEST) + r")\b"
    )
    operation = re.compile(r"\bOperation\s*[*&]|\b(?:reference_wrapper|span)<\s*Operation\b")
    # Neither says what it keeps: a coroutine's frame may have anything.
    unknown = re.compile(r"\b(decltype|[Aa]waitable)\b")

    def saves(c, below=()):
        """Whether SaveState is for it or for one of its bases."""
        if re.search(r"\bvirtual void SaveState\(|\bvoid SaveState\(\) (?:override|final)", c.body):
            return True
        return any(
            saves(b, (*below, c.name)) for base in c.bases if base not in below for b in named(base, c, classes)
        )

    def holder(c):
        """The class whose part it is, if it is only a struct of a class's own."""
        outer = [o for o in classes.get(c.outer.split("::")[-1], []) if o.path == c.path] if c.outer else []
        return holder(outer[0]) if outer and not c.bases else c

    seen, waiting = {}, []

    def meet(c, why):
        if id(c) not in seen:
            seen[id(c)] = why
            waiting.append(c)

    for root in ROOTS:
        for c in classes.get(root, []):
            if not c.outer:
                meet(c, root)
    found, used = [], set()
    while waiting:
        c = waiting.pop()
        why = seen[id(c)]
        for line, text in c.members:
            text = expanded(text, aliases)
            if (hit := pointer.search(text)) and c.name not in OF_ITS_OWN:
                found.append(f"{c.path}:{line}: {c.name} ({why}) points to a {hit[1] or hit[2]}: {text}")
            if operation.search(text) and not ATTACHES.search(c.body):
                used.add(c.name)
                if c.name not in ATTACHED:
                    found.append(f"{c.path}:{line}: {c.name} ({why}) keeps an Operation that is not set again: {text}")
            if hit := unknown.search(text):
                found.append(f"{c.path}:{line}: {c.name} ({why}) keeps what nobody can tell ({hit[1]}): {text}")
            for name in OWNED.findall(text):
                for inner in named(name, c, classes):
                    if saves(inner) and not SAVES.search(holder(c).body):
                        owns = f"owns a {inner.name} and has no SaveState"
                        found.append(f"{c.path}:{line}: {c.name} ({why}) {owns}: {text}")
                    meet(inner, f"{why} > {c.name}" if c.name != why else why)
        for name in c.bases:
            for base in named(name, c, classes):
                meet(base, why)
        for d in derived.get(c.name, []):
            meet(d, f"{why} > {c.name}" if c.name != why else why)
    for name in sorted(set(ATTACHED) - used):
        if len(sources) > 50:
            found.append(f"check_lifetimes.py: {name} in ATTACHED matches nothing any more")
    for line in sorted(set(found)):
        print(line)
    return len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
