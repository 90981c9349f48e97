#!/usr/bin/env python3
"""Finds commands that loop over a client's data on an io thread, where one request makes all others wait.

Checked are the functions in each command's row that run on an io thread: `run` without kWorker, `run_now`, and
`run_async` before it moves to a worker. (A move under a condition does not count for the code behind it.) The check
includes lambdas and the functions that they call, in the same file or, if the name is unique, in another one. It finds
loops over a client's documents, fields or sequences, sorts, and filters that are compiled there.

Such work belongs on a worker (kWorker, MoveToWorker), or needs a limit on its input; then it is listed in ALLOWED with
that limit. An entry of ALLOWED that matches nothing any more is reported too. tests/layout/check_io_loops_test.py shows
what this script must find; ioThreadWatchdogMicros reports the rest at run time.

Prints the places; the exit status is 1 when there are any. Usage: check_io_loops.py FILE…
"""

import re
import sys

from cpp_text import blank

# What may stay on the io thread, "command: function" (`*`: whatever calls it), and why.
CHEAP = "a few nanoseconds for each element of a message, a fraction of what it took to check its BSON"
BATCH = "at most 500 statements or 64 KB: what is larger is read on a worker"
SHORT = "a message above 4 KB runs on a worker (IsLong in the dispatcher)"
FIELDS = "at most 1,000 fields"
SHOWN = "a document of at most 16 KB, for a line of the log"
ALLOWED = {
    "aggregate: ParseAggregate": CHEAP,
    "find: IsPlainProjection": "at most 1,024 bytes",
    "aggregate: EndsInWrite": "at most 1,000 stages: the pipeline has been parsed",
    "aggregate: CheckStrictStages": CHEAP + "; with apiStrict alone",
    "bulkWrite: ReadBulkArgs": CHEAP + ": Documents makes views",
    "findAndModify: ParseFindAndModify": CHEAP,
    "update: IsLarge": "over sequences, of which a message has a few",
    "delete: IsLarge": "over sequences, of which a message has a few",
    "distinct: RunDistinct": "over values that a worker has gathered",
    "insert: RunInsert": CHEAP + ": Documents makes views",
    "insert: TotalBytes": CHEAP,
    "update: ReadUpdate": BATCH,
    "*: MayUpdateInline": "at most 100 paths and 4 KiB of them: then it says no",
    "*: HasCondition": "eight levels of one operand, in a command of at most 64 KiB",
    "*: Insert": BATCH,
    # What the runner of write statements tries here, for any of them. What it calls on a worker has the same names.
    "*: FitsHere": "no further than 16 documents",
    "*: SetStatementIds": BATCH,
    "*: ParseFilter": SHORT,
    "find: RefuseDeadlineFilter": SHORT,
    "update: RefuseDeadlineFilter": "as TakeDeadlineOf",
    "*: ParseUpdate": SHORT,
    "*: Delete": SHORT,
    "update: ParseUpdateStatement": BATCH,
    "update: TakeDeadlineOf": "on a worker: for tools that dump and restore, all of an update runs there",
    "update: RefuseElsewhere": "as TakeDeadlineOf",
    "delete: ReadDelete": BATCH,
    "_mayflyMember: MemberMayComeFrom": "over clusterIpSourceAllowlist, which the administrator gave at start-up",
    "hello: Hello": CHEAP,
    "isMaster: Hello": CHEAP,
    "hello: AppendHello": CHEAP,
    "isMaster: AppendHello": CHEAP,
    "getClusterParameter: GetClusterParameter": SHORT,
    "setParameter: SetParameter": SHORT,
    "killOp: ShortCommandText": SHORT + ", and the text ends at 1,000 bytes",
    "killOp: Append": "of a value of at most 256 bytes, for a text",
    "killOp: AppendItems": "of a value of at most 256 bytes, for a text",
    "killOp: AppendFields": "of a value of at most 256 bytes, for a text",
    "killOp: AppendNamesOnly": "of a value of at most 256 bytes, for a text",
    "killOp: AppendOfUsers": "of a value of at most 256 bytes, for a text",
    **{
        f"{command}: {name}": "of client metadata, or of a topologyVersion, of at most 512 bytes"
        for command in ("hello", "isMaster")
        for name in (
            *("TakeMetadata", "Parse", "In", "Append", "AppendItems", "AppendFields", "AppendOfUsers"),
            "AppendNamesOnly",
        )
    },
    # A document that a validator only warns of.
    "*: ShownDefinition": SHOWN,
    **{
        f"{command}: {name}": SHOWN
        for command in ("insert", "update", "delete")
        for name in ("In", "Append", "AppendItems", "AppendFields", "AppendOfUsers", "AppendNamesOnly")
    },
    "*: Shortened": "an entry for syslog, of a value above 64 KiB; stops after 16 KiB",
    "configureFailPoint: CheckStrings": SHORT,
    "*: ParseStream": SHORT,
    "*: Prepare": SHORT + "; in a slice of time, as what a view brings",
    "*: CheckPipeline": CHEAP + "; of a view: as ResolveView",
    "*: ResolveView": "in a slice of time; a view's pipeline has at most 1,000 stages, and its definition 16 MB",
    "distinct: AppendInOrder": "values that were found in a slice of time",
    "listCommands: ListCommands": "over the commands there are",
    "*: Take": FIELDS,
    "*: Has": FIELDS,
    "*: Add": "of NamesOnce: over at most 64 fields; of DocumentList: a view",
    "*: Finish": FIELDS,
    "*: Unread": FIELDS,
    "*: Documents": CHEAP + ": it makes views",
    "*: OriginatingCommand": "copies at most 16 KB",
    "*: ReadShape": "looks at small documents only",
    # Time series: names of buckets in the place of those of points.
    "*: BucketIndexKey": SHORT + ": a hint",
    "*: SeriesIndexKey": "over the fields of a stored index, at most 32",
    "*: TryStagePoints": BATCH,
    "*: Buckets": BATCH,
    "*: AsOneUnit": "over the small buckets of one meta value and span: 64, but for every 64th of more",
    "*: DeletePoints": "on a worker: single deletes alone are tried here, and these are refused",
}

BSON = r"(?:BsonElement|CommandField|BsonView|BsonArrayView|DocumentSequence|BsonValue|BsonDocument)"
# What a client sent, by how it is written. Variables and parameters of such types are found in each function.
SENT = r"\.(?:body|args|command|sequences|fields)\b|\.(?:Document|Array|AsDocument)\(\)|\bElements\("
LOOP = re.compile(
    rf"for \((?P<type>[^;()]*?)(?::(?!:))\s*(?P<over>[^;{{]*?)\)(?=\s)|"
    rf"for \([^;]*=\s*(?P<from>[^;]*?)(?:\.|->)(?:begin|First|rbegin)\(\)[^;]*;|"
    r"while \([^;{]*(?:\.|->)(?:Next|Advance)\(\)|"
    r"(?P<always>\.Documents\(|\bToVector\(|\bstd::(?:stable_)?sort\(|"
    r"\b(?:CompileFilter|ParseFilter|CompileMatch|ParseMatch|CompileRegex|MakeMatcher)\w*\()"
)
WORKER = re.compile(r"\bMoveToWorker\w*\(")
FUNCTION = re.compile(
    r"^(?P<indent>(?:  )?)(?=[A-Za-z])(?!(?:co_)?return\b)(?:static |inline )?(?:[\w:<>,&* ]+?)\b"
    r"(?P<name>(?!if\b|for\b|while\b|switch\b|catch\b|MAYFLY_)\w+)"
    r"\((?P<args>[^;{}]*)\)(?: const)?(?: override)? \{$",
    re.M,
)


def functions(text):
    """name -> (offset, parameters, body) of the functions of a file and the methods of its classes."""
    found = {}
    for m in FUNCTION.finditer(text):
        end = text.find(f"\n{m['indent']}}}", m.end())
        found.setdefault(m.group("name"), (m.end(), m.group("args"), text[m.end() : end]))
    return found


def on_io_thread(body):
    """The body with blanks for what runs on a worker: from a move there to the end of its block. A move under a
    condition leaves what follows."""
    out = body
    for m in WORKER.finditer(body):
        statement = body[max(body.rfind(c, 0, m.start()) for c in ";{}") + 1 : m.start()]
        if re.search(r"\b(?:if|else|for|while)\b", statement):
            continue
        depth, at = 0, m.start()
        while at < len(body) and depth >= 0:
            depth += {"{": 1, "}": -1}.get(body[at], 0)
            at += 1
        out = out[: m.start()] + " " * (at - m.start()) + out[at:]
    return out


def loops(parameters, body):
    """Offsets of loops over a client's data, and of what is never short, in a body."""
    sent = "|".join([SENT] + [rf"^\W*{v}$" for v in re.findall(rf"\b{BSON}&?\s+(\w+)", parameters + ";" + body)])
    for m in LOOP.finditer(body):
        if m["over"] is not None:
            if not re.search(rf"\b{BSON}\b", m["type"]) and not re.search(sent, m["over"].strip()):
                continue
        elif m["from"] is not None and not re.search(sent, m["from"].strip()):
            continue
        yield m.start()


def rows(original, plain):
    """(command, flags, {kind: function}) of each row. Names come from the text with strings."""
    for m in re.finditer(r"\b\w*(?:registry|commands|r)\.Add\(\s*\{", plain):
        depth, i = 1, m.end()
        while i < len(plain) and depth:
            depth += {"{": 1, "}": -1}.get(plain[i], 0)
            i += 1
        body = plain[m.end() : i]
        name = re.search(r'\.name = "([^"]*)"', original[m.end() : i])
        yield (name.group(1) if name else "?", " ".join(re.findall(r"\.flags = ([^,]*)", body)), runs_of(body, m.end()))


def runs_of(row, at):
    """{kind: name of a function, or (offset, parameters, body) of a lambda} of a row that begins at `at`."""
    runs = dict(re.findall(r"\.(run|run_async|run_now) = &?(\w+)", row))
    for m in re.finditer(r"\.(run|run_async|run_now) = \[[^\]]*\]\s*\((?P<args>[^{}]*?)\)[^{}()]*\{", row):
        depth, end = 1, m.end()
        while end < len(row) and depth:
            depth += {"{": 1, "}": -1}.get(row[end], 0)
            end += 1
        runs[m[1]] = (at + m.end(), m["args"], row[m.end() : end - 1])
    return runs


def constants(plain):
    return dict(re.findall(r"constexpr (?:uint32_t|auto) (k\w+) = ([^;]*);", plain))


def places(known, others, start):
    """(path, function, offset) of each loop that `start` reaches on the io thread. `known` are the functions of its
    file, `others` those of all files whose name is theirs alone; both name -> (path, offset, parameters, body)."""
    seen, todo = set(), [(start, known)]
    while todo:
        name, here = todo.pop()
        found = here.get(name) or others.get(name)
        if name in seen or not found:
            continue
        seen.add(name)
        path, offset, parameters, body = found
        body = on_io_thread(body)
        for at in loops(parameters, body):
            yield path, name, offset + at
        todo += [(f, FILES[path]) for f in re.findall(r"\b(\w+)\(", body)]


FILES = {}


def main():
    found, used, texts, commands, count = 0, set(), {}, [], {}
    for path in sys.argv[1:]:
        if "/http/" in path:  # has a thread of its own
            continue
        texts[path] = open(path, encoding="utf-8").read()
        plain = blank(texts[path])
        FILES[path] = {name: (path, *f) for name, f in functions(plain).items()}
        for name in FILES[path]:
            count[name] = count.get(name, 0) + 1
        flags_of = constants(plain)
        for command, flags, runs in rows(texts[path], plain):
            for name, value in flags_of.items():
                flags = re.sub(rf"\b{name}\b", f"{name} | {value}", flags)
            commands.append((path, command, flags, runs))
    others = {name: f for known in FILES.values() for name, f in known.items() if count[name] == 1}

    told = set()
    for file, command, flags, runs in commands:
        for kind, start in runs.items():
            if kind == "run" and "kWorker" in flags:
                continue
            if start not in FILES[file] and start not in others:
                known, start = {**FILES[file], "": (file, *start)}, ""
            else:
                known = FILES[file]
            for path, function, offset in places(known, others, start):
                key = next((k for k in (f"{command}: {function}", f"*: {function}") if k in ALLOWED), None)
                if key:
                    used.add(key)
                    continue
                if (path, offset) in told:
                    continue
                told.add((path, offset))
                line = texts[path][:offset].count("\n") + 1
                print(
                    f"{path}:{line}: {command} goes over what a client sent on an io thread, "
                    f"in {function or 'its row'}: "
                    f"move it to a worker, or say in scripts/lib/check_io_loops.py what bounds it"
                )
                found += 1
    if "--all" in sys.argv or any(path.endswith("/commands/register.cc") for path in sys.argv):
        for key in sorted(set(ALLOWED) - used):
            print(f"scripts/lib/check_io_loops.py: nothing needs the allowance {key!r} any more")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
