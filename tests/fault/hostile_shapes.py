"""What tests/fault/hostile_run.py sends: BSON made by hand, huge, many, deep or long values, and the places in commands
where a value can stand."""

import itertools, re, struct, zlib

from fault_test import ROOT


# --- BSON made by hand: what a driver would not send ------------------------------------------------------------------
def document(elements):
    return struct.pack("<i", len(elements) + 5) + elements + b"\0"


def element(kind, name, payload):
    return bytes([kind]) + name + b"\0" + payload


def text(s):
    return struct.pack("<i", len(s) + 1) + s + b"\0"


def items(n, kind, payload):
    """The elements of an array of n equal values. The names all say 0: nobody may go by them."""
    return (bytes([kind]) + b"0\0" + payload) * n


def nested(levels, array):
    inner = document(b"")
    for _ in range(levels):
        inner = document(element(4 if array else 3, b"0" if array else b"a", inner))
    return inner


SHAPES = {  # name: (BSON type, bytes of the value); made when first used
    "huge string": lambda: (2, text(b"x" * 15_000_000)),
    "long string": lambda: (2, text(b"ab" * 500_000)),
    "a NUL": lambda: (2, text(b"before\0behind")),
    "many nulls": lambda: (3, document(b"\x0a\0" * 4_000_000)),
    "many fields": lambda: (3, document(b"".join(element(16, b"f%d" % i, b"\1\0\0\0") for i in range(300_000)))),
    "many operators": lambda: (3, document(element(3, b"a", document(element(16, b"$gt", b"\1\0\0\0") * 300_000)))),
    "many numbers": lambda: (4, document(items(1_000_000, 16, b"\1\0\0\0"))),
    "many strings": lambda: (4, document(items(500_000, 2, text(b"a")))),
    "many documents": lambda: (4, document(items(300_000, 3, document(element(16, b"a", b"\1\0\0\0"))))),
    "many empty documents": lambda: (4, document(items(1_000_000, 3, document(b"")))),
    "many patterns": lambda: (4, document(items(200_000, 11, b"a+b*c\0\0"))),
    "many conditions": lambda: (
        3,
        document(element(4, b"$or", document(items(200_000, 3, document(element(16, b"a", b"\1\0\0\0")))))),
    ),
    "many different": lambda: (
        3,
        document(
            element(
                3,
                b"a",
                document(
                    element(
                        4, b"$in", document(b"".join(element(18, b"0", struct.pack("<q", i)) for i in range(300_000)))
                    )
                ),
            )
        ),
    ),
    "a long pattern": lambda: (3, document(element(11, b"a", b"(a|b)*" * 4_600 + b"\0\0"))),
    "a deep document": lambda: (3, nested(180, False)),
    "a deep array": lambda: (4, nested(180, True)),
    "deep conditions": lambda: (3, deep_conditions(80)),
    "a long name": lambda: (3, document(element(16, b"n" * 5_000_000, b"\1\0\0\0"))),
    "a long path": lambda: (3, document(element(16, b"a." * 1_000_000 + b"a", b"\1\0\0\0"))),
    "a long operator": lambda: (3, document(element(16, b"$" + b"n" * 1_000_000, b"\1\0\0\0"))),
    "one name again": lambda: (3, document(element(16, b"same", b"\1\0\0\0") * 1_000_000)),
    "a number": lambda: (18, struct.pack("<q", 2**63 - 1)),
    "a binary": lambda: (5, struct.pack("<i", 15_000_000) + b"\0" + b"\0" * 15_000_000),
}


def deep_conditions(levels):
    inner = document(element(16, b"a", b"\1\0\0\0"))
    for _ in range(levels):
        inner = document(
            element(
                4,
                b"$and",
                document(element(3, b"0", inner) + element(3, b"1", document(element(16, b"b", b"\1\0\0\0")))),
            )
        )
    return inner


made = {}


def shape(name):
    if name not in made:
        if sum(len(v[1]) for v in made.values()) > 150_000_000:
            made.clear()
        made[name] = SHAPES[name]()
    return made[name]


def colliding(n):
    """2^n strings of bytes that std::hash of this compiler's library gives the same number, whatever its seed."""
    mask, mul = (1 << 64) - 1, 0xC6A4A7935BD1E995
    inverse = pow(mul, -1, 1 << 64)

    def forth(k):
        k = k * mul & mask
        return (k ^ k >> 47) * mul & mask

    def back(k):
        k = k * inverse & mask
        return (k ^ k >> 47) * inverse & mask

    parts = []
    for i in range(n):
        words = 0x4141414141414141 + i, 0x4242424242424242
        parts.append([struct.pack("<QQ", *words), struct.pack("<QQ", *(back(forth(k) ^ 1 << 63) for k in words))])
    return [b"".join(c) for c in itertools.product(*parts)]


# --- Where a value can stand ------------------------------------------------------------------------------------------
# Commands that would end what the others need, or are made to wait.
LEFT_OUT = {
    "shutdown",
    "fsync",
    "replSetInitiate",
    "replSetStepDown",
    "replSetFreeze",
    "configureFailPoint",
    "testClock",
    "setClock",
}
INT = (16, b"\1\0\0\0")
NAME = (2, text(b"c"))


def field(name, value):
    return element(value[0], name.encode(), value[1])


def inside(*names):
    """Puts the hole at the end of a path of documents (a name that ends in [] is an array of one)."""

    def fill(value):
        for n in reversed(names):
            if n.endswith("[]"):
                value = (4, document(element(value[0], b"0", value[1])))
            elif n.endswith("{}"):
                value = (3, value)
            else:
                value = (3, document(element(value[0], n.encode(), value[1])))
        return value

    return fill


def places(client):
    """(command, argument, elements of a body from a value) for all that can be sent. `client` asks for the commands."""
    source = {}
    for p in sorted((ROOT / "server").rglob("*.cc")):
        source[p.name] = p.read_text()
    argument = re.compile(r'\bin\.\w+(?:<\w+>)?\(\s*"([$a-zA-Z]+)"')
    everywhere = sorted(set(itertools.chain.from_iterable(argument.findall(t) for t in source.values())))
    known = sorted(
        n
        for n in client.command("admin", {"listCommands": 1})["commands"]
        if n not in LEFT_OUT and not n.startswith("_")
    )
    for name in known:
        mine = sorted(
            set(itertools.chain.from_iterable(argument.findall(t) for t in source.values() if f'.name = "{name}"' in t))
        )
        yield name, "its own", lambda v, name=name: field(name, v)
        for a in ["unknownField", *mine]:
            if a != name:
                yield name, a, lambda v, name=name, a=a: field(name, NAME) + field(a, v)
        yield (
            name,
            "top level",
            lambda v, name=name: field(name, NAME) + v[1][4:-1] if v[0] in (3, 4) else field(name, INT) + field("x", v),
        )
        a = everywhere[zlib.crc32(name.encode()) % len(everywhere)]
        yield name, a, lambda v, name=name, a=a: field(name, NAME) + field(a, v)
    for name, path in NESTED:
        names = path.split(" ")
        fill = inside(*names[1:])
        yield (
            name,
            path,
            lambda v, name=name, names=names, fill=fill: (
                field(name, NAME) + field(names[0], fill(v)) + REST.get((name, names[0]), b"")
            ),
        )
    for a in (
        "lsid",
        "comment",
        "readConcern",
        "writeConcern",
        "$clusterTime",
        "$readPreference",
        "let",
        "collation",
        "hint",
        "maxTimeMS",
        "apiVersion",
        "$db",
    ):
        for name in ("find", "insert", "ping", "aggregate", "update"):
            yield name, a, lambda v, name=name, a=a: field(name, NAME) + field(a, v)


CURSOR = field("cursor", (3, document(b"")))
ONE_OP = field(
    "ops",
    (
        4,
        document(
            element(3, b"0", document(element(16, b"insert", b"\0\0\0\0") + field("document", (3, document(b"")))))
        ),
    ),
)
REST = {("aggregate", "pipeline"): CURSOR, ("explain", "find"): b"", ("bulkWrite", "nsInfo"): ONE_OP}
NESTED = [
    ("find", "filter a"),
    ("find", "filter a $in"),
    ("find", "filter a $regex"),
    ("find", "filter a $elemMatch"),
    ("find", "filter $expr"),
    ("find", "filter $or"),
    ("find", "filter $jsonSchema"),
    ("find", "filter $jsonSchema properties"),
    ("find", "filter $jsonSchema enum"),
    ("find", "projection a"),
    ("find", "sort a"),
    ("find", "filter $expr $concat"),
    ("find", "filter $expr $setUnion"),
    ("find", "filter $expr $switch branches"),
    ("find", "filter $expr $let vars"),
    ("aggregate", "pipeline [] $match"),
    ("aggregate", "pipeline [] $project"),
    ("aggregate", "pipeline [] $group"),
    ("aggregate", "pipeline [] $set a"),
    ("aggregate", "pipeline [] $lookup"),
    ("aggregate", "pipeline [] $lookup pipeline"),
    ("aggregate", "pipeline [] $facet"),
    ("aggregate", "pipeline [] $facet a"),
    ("aggregate", "pipeline [] $bucket boundaries"),
    ("aggregate", "pipeline [] $unset"),
    ("aggregate", "pipeline [] $sort"),
    ("aggregate", "pipeline [] $unionWith"),
    ("aggregate", "pipeline [] $documents"),
    ("aggregate", "pipeline [] $merge"),
    ("aggregate", "pipeline [] $currentOp"),
    ("aggregate", "pipeline [] $listLocalSessions users"),
    ("aggregate", "pipeline [] $setWindowFields output"),
    ("aggregate", "pipeline [] $fill output"),
    ("aggregate", "pipeline [] $replaceRoot newRoot"),
    ("update", "updates [] q"),
    ("update", "updates [] u"),
    ("update", "updates [] arrayFilters"),
    ("insert", "documents []"),
    ("delete", "deletes [] q"),
    ("findAndModify", "query a"),
    ("findAndModify", "update $set"),
    ("findAndModify", "fields"),
    ("findAndModify", "arrayFilters"),
    ("distinct", "query"),
    ("count", "query"),
    ("createIndexes", "indexes"),
    ("createIndexes", "indexes [] key"),
    ("createIndexes", "indexes [] name"),
    ("createIndexes", "indexes [] partialFilterExpression"),
    ("create", "validator"),
    ("create", "pipeline"),
    ("create", "clusteredIndex"),
    ("collMod", "index"),
    ("collMod", "validator"),
    ("bulkWrite", "ops"),
    ("bulkWrite", "nsInfo"),
    ("bulkWrite", "nsInfo [] ns"),
    ("explain", "find"),
    ("listCollections", "filter"),
    ("listCollections", "filter name"),
    ("listDatabases", "filter"),
    ("currentOp", "a $in"),
    ("refreshSessions", "x"),
    ("killSessions", "x"),
    ("killCursors", "cursors"),
    ("hello", "client"),
    ("hello", "client application"),
    ("hello", "compression"),
    ("hello", "topologyVersion"),
    ("hello", "saslSupportedMechs"),
    ("killAllSessionsByPattern", "x"),
    ("getParameter", "a"),
    ("planCacheSetFilter", "indexes"),
    ("ttlForecast", "filter"),
    ("setClusterParameter", "x"),
    ("setFeatureCompatibilityVersion", "x"),
    ("validate", "x"),
    ("dropIndexes", "index"),
    ("renameCollection", "to"),
    ("replSetReconfig", "members"),
    ("replSetReconfig", "settings"),
    ("applyOps", "x"),
]


def body_of(elements, db=b"hostile"):
    rest = element(16, b"maxTimeMS", struct.pack("<i", 1000))
    if b"\0$db\0" not in elements and b"\2$db\0" not in elements:
        rest += element(2, b"$db", text(db))
    return document(elements + rest)


def frame(body, compressed):
    plain = b"\0\0\0\0\0" + body
    if compressed:
        packed = zlib.compress(plain, 1)
        return struct.pack("<iiiiiiB", 25 + len(packed), 1, 0, 2012, 2013, len(plain), 2) + packed
    return struct.pack("<iiii", 16 + len(plain), 1, 0, 2013) + plain
