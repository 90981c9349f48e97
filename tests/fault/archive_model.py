"""What the runs of archives write and compare: one client whose every step is known, others beside it, and what there
must be after a restore to the time of a step."""

import copy, datetime, threading

import pymongo
from pymongo.errors import PyMongoError

from fault_test import Deadline, rnd

LARGE = "x" * 2_500_000
ACCOUNTS = 10
UNCOMPARED = ("model.large", "bank.large")


def now():
    return datetime.datetime.now(datetime.timezone.utc)


class Model:
    """What one client has written, and what there was at the time of each of its operations."""

    def __init__(self, client):
        self.client, self.state, self.deadlines, self.times = client, {"plain": {}}, {}, []
        self.next = 0

    def step(self):
        """One operation, tried until it has succeeded: whatever became of it before, it ends the same."""
        self.next += 1
        n = self.next
        colls = list(self.state)
        c = rnd.choice(colls)
        key = f"k{rnd.randrange(60)}"
        kinds = ["put"] * 8 + ["delete"] * 2 + ["transaction"] * 3 + ["expiring"] * 4 + ["index", "large", "many"]
        kinds += ["create"] if len(colls) < 4 else ["drop", "rename"]
        kind = rnd.choice(kinds)
        if kind in ("drop", "rename") and c == "plain":
            kind = "put"
        act, after = getattr(self, kind)(n, c, key)
        deadline = Deadline()
        while True:
            try:
                with self.client.start_session(causal_consistency=True) as s:
                    act(s)
                    at = s.operation_time
                break
            except PyMongoError as e:
                if not deadline.holds():
                    raise AssertionError(f"{kind} does not succeed: {e!r}") from e
        after()
        self.times.append((at, copy.deepcopy(self.state), len(self.deadlines)))

    def put(self, n, c, key):
        def act(s):
            self.client.model[c].replace_one({"_id": key}, {"_id": key, "n": n}, upsert=True, session=s)

        return act, lambda: self.state[c].update({key: n})

    def delete(self, n, c, key):
        return (
            lambda s: self.client.model[c].delete_one({"_id": key}, session=s),
            lambda: self.state[c].pop(key, None),
        )

    def large(self, n, c, key):
        def act(s):
            document = {"_id": key, "n": n, "text": LARGE}
            self.client.model.large.replace_one({"_id": key}, document, upsert=True, session=s)

        return act, lambda: None

    def many(self, n, c, key):
        keys = [f"k{rnd.randrange(60)}" for _ in range(5)]

        def act(s):
            self.client.model[c].bulk_write(
                [pymongo.ReplaceOne({"_id": k}, {"_id": k, "n": n}, upsert=True) for k in keys], session=s
            )

        return act, lambda: self.state[c].update({k: n for k in keys})

    def transaction(self, n, c, key):
        keys = [f"k{rnd.randrange(60)}" for _ in range(3)]

        def act(s):
            with s.start_transaction():
                for k in keys:
                    self.client.model[c].replace_one({"_id": k}, {"_id": k, "n": n}, upsert=True, session=s)
                self.client.model.plain.delete_one({"_id": key}, session=s)

        def after():
            self.state[c].update({k: n for k in keys})
            self.state["plain"].pop(key, None)

        return act, after

    def expiring(self, n, c, key):
        deadline = now() + datetime.timedelta(milliseconds=rnd.choice([300, 1000, 3_600_000]))
        deadline = deadline.replace(microsecond=deadline.microsecond // 1000 * 1000)

        def act(s):
            self.client.model.command(
                "update", "expiring",
                updates=[{"q": {"_id": n}, "u": {"_id": n}, "upsert": True}], expireAt=deadline, session=s,
            )  # fmt: skip

        return act, lambda: self.deadlines.update({n: deadline})

    def index(self, n, c, key):
        field = rnd.choice(["n", "m", "o"])
        return lambda s: self.client.model[c].create_index(field, session=s), lambda: None

    def create(self, n, c, key):
        name = f"c{n}"

        def act(s):
            self.client.model[name].replace_one({"_id": "first"}, {"_id": "first", "n": n}, upsert=True, session=s)

        return act, lambda: self.state.update({name: {"first": n}})

    def drop(self, n, c, key):
        return lambda s: self.client.model.drop_collection(c, session=s), lambda: self.state.pop(c)

    def rename(self, n, c, key):
        name = f"r{n}"

        def act(s):
            if name not in self.client.model.list_collection_names(session=s):
                self.client.admin.command("renameCollection", f"model.{c}", to=f"model.{name}", session=s)

        return act, lambda: self.state.update({name: self.state.pop(c)})


class Beside(threading.Thread):
    """Moves money between accounts in transactions, and writes what expires at once: no time may show a half."""

    def __init__(self, uri):
        super().__init__()
        self.uri, self.stop, self.made = uri, False, 0

    def run(self):
        client = pymongo.MongoClient(  # clock: what fails is tried again
            self.uri, serverSelectionTimeoutMS=2000, socketTimeoutMS=5000, retryWrites=False
        )
        n = 0
        while not self.stop:
            n += 1
            a, b = n % ACCOUNTS, (n * 7 + 1) % ACCOUNTS
            try:
                with client.start_session() as s, s.start_transaction():
                    client.bank.accounts.update_one({"_id": a}, {"$inc": {"v": -1}}, session=s)
                    client.bank.other.update_one({"_id": b}, {"$inc": {"v": 1}}, session=s)
                self.made += 1
                client.bank.command("insert", "short", documents=[{"n": n}] * 3, expireAfterSeconds=1)
                if n % 8 == 0:
                    client.bank.large.replace_one({"_id": 1}, {"n": n, "text": LARGE * 2}, upsert=True)
            except PyMongoError:
                pass
        client.close()


def open_bank(client):
    for c in ("accounts", "other"):
        client.bank[c].insert_many([{"_id": i, "v": 0} for i in range(ACCOUNTS)])


def seen_by(client):
    """What a client sees after a restore, and the collections that are not valid: {ns: {_id: {"doc": …}}}, [ns]."""
    contents, faults = {}, []
    for db in ("model", "bank"):
        for c in client[db].list_collection_names():
            if not client[db].command("validate", c)["valid"]:
                faults.append(f"{db}.{c}")
            if f"{db}.{c}" not in UNCOMPARED:
                reply = client[db].command("find", c, includeExpired=True, batchSize=1_000_000)
                contents[f"{db}.{c}"] = {d["_id"]: {"doc": d} for d in reply["cursor"]["firstBatch"]}
    return contents, faults


def differences(contents, faults, at, state, deadlines):
    """Between what there is after a restore and the model, in words. `contents`, `faults`: as seen_by gives them, or
    with an `expireAt` beside each document, None if it has no deadline of its own."""
    out = [f"{ns} is not valid" for ns in faults]
    model = {ns.removeprefix("model."): c for ns, c in contents.items() if ns.startswith("model.")}
    expiring = model.pop("expiring", {})
    wanted = {c for c in state if state[c]} | {"plain"}
    if not (model.keys() - {"plain"}) <= set(state) or not (wanted - {"plain"}) <= model.keys():
        out.append(f"collections {sorted(model)} instead of {sorted(state)}")
    for c in model.keys() & set(state):
        there = {key: d["doc"]["n"] for key, d in model[c].items()}
        if there != state[c]:
            out.append(f"{c}: {sorted(set(there.items()) ^ set(state[c].items()))[:6]}")
        if any(d.get("expireAt") for d in model[c].values()):
            out.append(f"{c}: a document has a deadline")
    live = at.as_datetime() + datetime.timedelta(seconds=2)
    missing = {n for n, deadline in deadlines.items() if deadline > live} - expiring.keys()
    if missing or not expiring.keys() <= set(deadlines):
        out.append(f"expiring: missing {sorted(missing)[:5]}, too many {sorted(expiring.keys() - set(deadlines))[:5]}")
    moved = [(n, d["expireAt"]) for n, d in expiring.items() if "expireAt" in d and d["expireAt"] != deadlines.get(n)]
    if moved:
        out.append(f"expiring: other deadlines {moved[:5]}")
    bank = [d["doc"]["v"] for c in ("accounts", "other") for d in contents.get(f"bank.{c}", {}).values()]
    if sum(bank) != 0:
        out.append(f"half of a transfer: {sum(bank)}")
    return out
