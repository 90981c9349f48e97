#!/usr/bin/env python3
"""Finds commands that go over what a client sent on a thread that serves connections: one request then keeps all others waiting.

Looked at are the functions of each command's row that run there (`run` without kWorker, `run_now`, and `run_async` up to its first move to a
worker) and what they call in the same file. Found are loops over a client's documents, fields or sequences, and filters that are compiled
there. Such work belongs on a worker (kWorker, MoveToWorker), or needs a limit on what it goes over; then it is listed below with that limit.
Prints the places; the exit status is 1 when there are any. Usage: check_io_loops.py FILE…"""
import re
import sys

# What may stay on the io thread, "command: function" (`*`: whatever calls it), and why.
CHEAP = "a few nanoseconds for each element of a message, a fraction of what it took to check its BSON"
BATCH = "at most 500 statements or 64 KB: what is larger is read on a worker"
ALLOWED = {
    "aggregate: ParseAggregate": CHEAP,
    "find: IsPlainProjection": "at most 1,024 bytes",
    "aggregate: EndsInWrite": "at most 1,000 stages: the pipeline has been parsed",
    "aggregate: CheckStrictStages": CHEAP + "; with apiStrict alone",
    "bulkWrite: RunBulkWrite": CHEAP + ": Documents makes views",
    "applyOps: RunApplyOps": CHEAP + ": Documents makes views",
    "findAndModify: ParseFindAndModify": CHEAP,
    "update: IsLarge": "over sequences, of which a message has a few",
    "delete: IsLarge": "over sequences, of which a message has a few",
    "distinct: RunDistinct": "over values that a worker has gathered",
    "insert: RunInsert": CHEAP + ": Documents makes views",
    "insert: TotalBytes": CHEAP,
    "update: ReadUpdate": BATCH,
    "update: ParseUpdateStatement": BATCH,
    "delete: ReadDelete": BATCH,
    "hello: Hello": CHEAP,
    "isMaster: Hello": CHEAP,
    "hello: AppendHello": CHEAP,
    "isMaster: AppendHello": CHEAP,
    # Known to take long with a large message; each of them should move to a worker.
    "currentOp: CurrentOp": "to be moved",
    "listCollections: RunListCollections": "to be moved",
    "getClusterParameter: GetClusterParameter": "to be moved",
    "setParameter: SetParameter": "to be moved",
    "killSessions: ReadIds": "to be moved",
    "refreshSessions: ReadIds": "to be moved",
    "killAllSessions: KillAllSessions": "to be moved",
    "killAllSessionsByPattern: KillAllSessionsByPattern": "to be moved",
}

LOOP = re.compile(r"for \([^;()]*\b(?:BsonElement|CommandField|BsonView|DocumentSequence)\b[^;()]*:\s*(?P<over>[^;{]*)\)|\.Documents\(|"
                  r"\b(?:CompileFilter|ParseFilter|CompileMatch|ParseMatch|CompileRegex|MakeMatcher)\w*\(")
WORKER = re.compile(r"\bMoveToWorker\w*\(")
FUNCTION = re.compile(r"^(?:static |inline )?(?:[\w:<>,&* ]+?)\b(?P<name>\w+)\((?P<args>[^;{}]*)\)(?: const)? \{$", re.M)


def without_comments(text):
    text = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', text)


def functions(text):
    """name -> (offset, body) of the functions that begin in column 0."""
    found = {}
    for m in FUNCTION.finditer(text):
        end = text.find("\n}", m.end())
        found.setdefault(m.group("name"), (m.end(), text[m.end():end]))
    return found


def rows(original, plain):
    """(command, flags, {kind: function}) of each row. Names come from the text with strings."""
    for m in re.finditer(r"\b\w*(?:registry|commands|r)\.Add\(\s*\{", plain):
        depth, i = 1, m.end()
        while i < len(plain) and depth:
            depth += {"{": 1, "}": -1}.get(plain[i], 0)
            i += 1
        body = plain[m.end():i]
        name = re.search(r'\.name = "([^"]*)"', original[m.end():i])
        yield (name.group(1) if name else "?", " ".join(re.findall(r"\.flags = ([^,]*)", body)),
               dict(re.findall(r"\.(run|run_async|run_now) = &?(\w+)", body)))


def constants(plain):
    return dict(re.findall(r"constexpr (?:uint32_t|auto) (k\w+) = ([^;]*);", plain))


def places(all_functions, start):
    """(function, offset) of each loop that `start` reaches on the io thread."""
    seen, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name in seen or name not in all_functions:
            continue
        seen.add(name)
        offset, body = all_functions[name]
        moved = WORKER.search(body)
        body = body[:moved.start()] if moved else body
        for loop in LOOP.finditer(body):
            yield name, offset + loop.start()
        todo += [f for f in re.findall(r"\b(\w+)\(", body) if f in all_functions]


def main():
    found = 0
    for path in sys.argv[1:]:
        original = open(path, encoding="utf-8").read()
        plain = without_comments(original)
        known, flags_of = functions(plain), constants(plain)
        told = set()
        for command, flags, runs in rows(original, plain):
            for name, value in flags_of.items():
                flags = re.sub(rf"\b{name}\b", f"{name} | {value}", flags)
            for kind, start in runs.items():
                if kind == "run" and "kWorker" in flags:
                    continue
                for function, offset in places(known, start):
                    if f"{command}: {function}" in ALLOWED or f"*: {function}" in ALLOWED or offset in told:
                        continue
                    told.add(offset)
                    line = original[:offset].count("\n") + 1
                    print(f"{path}:{line}: {command} goes over what a client sent on an io thread, in {function}: "
                          f"move it to a worker, or say in scripts/lib/check_io_loops.py what bounds it")
                    found += 1
    return 1 if found else 0


sys.exit(main())
