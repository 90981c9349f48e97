"""Transactions among the steps of expiry_model.py: what they see and what is left of them, on a set of one.

The model is copied when a transaction begins. What its statements do is done to the copy, which its reads must show;
everybody else sees the other one. The commit puts the copy in its place.
"""

import copy, uuid

import bson
from bson.int64 import Int64

ENDS = ["commitTransaction", "commitTransaction", "commitTransaction", "abortTransaction"]
SESSION = {"id": bson.Binary.from_uuid(uuid.UUID("33333333-2222-4333-8444-00000000000f"))}


class Transactions:
    """Part of expiry_model's Run."""

    ends = {"committed": 0, "aborted": 0, "lost": 0, "broken": 0}
    txn_number, inside, broken, plain, started = 0, False, False, False, False

    def in_transaction(self, cmd):
        """The command as one of the open transaction."""
        start = {} if self.started else {"startTransaction": True}
        self.started = True
        return {**cmd, "lsid": SESSION, "txnNumber": Int64(self.txn_number), "autocommit": False, **start}

    def outside(self, f):
        """What somebody else does meanwhile, and sees."""
        self.inside, mine = False, self.m
        self.m = self.before
        f()
        self.inside, self.m = True, mine

    def transaction(self, c):
        """A few statements; in some, time goes on before the end."""
        self.advance(seconds=0)
        # Deadlines that are counted from now would be others when time goes on.
        self.plain = c in "pr" and self.m.database_max == 0 and self.rng.random() < 0.4
        self.before, self.m = self.m, copy.deepcopy(self.m)
        self.stored = dict(self.m.data[c])
        self.visible = self.m.visible(c)
        self.txn_number, self.started, self.inside, self.broken = self.txn_number + 1, False, True, False
        for _ in range(self.rng.randint(1, 4)):
            self.rng.choice([self.insert, self.insert, self.update, self.update, self.update_many, self.remove])(c)
            if self.broken:  # by a duplicate key
                break
            self.compare_inside(c)
        if self.broken:
            self.end("abortTransaction", 251)
        elif self.plain:
            self.later(c)
        else:
            self.end(self.rng.choice(ENDS))
        self.plain = False
        self.advance(seconds=0)

    def compare_inside(self, c):
        v, full = self.shown(c)
        for f in (self.read_all, self.read_index, self.read_ids, self.read_pipeline):
            f(c, v, full)
        self.outside(lambda: self.compare(c, False))

    def later(self, c):
        """Time goes on: not for what the transaction sees, but for what others have of the documents it writes."""
        self.outside(lambda: self.advance(seconds=self.rng.choice([1, 5, 20])))
        self.compare_inside(c)
        written = [i for i, d in self.visible.items() if self.m.data[c].get(i) is not d]
        lost = any(self.before.hidden(c, i, self.stored[i]) for i in written)
        now = self.before.now
        self.end(self.rng.choice(ENDS), 112 if lost else None)
        self.m.now = now
        self.m.settle()

    def end(self, name, code=None):
        """Ends it; an abort does not fail with what a commit fails with."""
        self.inside = False
        if name == "abortTransaction" and not self.broken:
            code = None
        cmd = {name: 1, "lsid": SESSION, "txnNumber": Int64(self.txn_number), "autocommit": False}
        self.same(f"{name} after {self.last}", code, self.client.command("admin", cmd).get("code"))
        if name == "abortTransaction" or code is not None:
            self.m = self.before
        how = "aborted" if name == "abortTransaction" else "committed"
        self.ends["broken" if self.broken else "lost" if code is not None else how] += 1
