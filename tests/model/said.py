"""What the models share: commands that must succeed, comparisons, and the server that a model asks."""

import random, sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / d) for d in ("conformance", "golden")]
import topologies
from run import Client, Server


class Said:
    """Of a run whose `send(cmd, db)` asks its server."""

    def ok(self, cmd, db="model"):
        r = self.send(cmd, db)
        assert r["ok"] == 1 and "writeErrors" not in r, f"{cmd}: {r}"
        return r

    def admin(self, cmd):
        return self.ok(cmd, "admin")

    def same(self, what, want, got):
        assert want == got, f"{what}:\n  want {want}\n  got  {got}"


def begin(args):
    """(random numbers by args.seed, which is set and printed; the server that was started, or None
    with --uri; its client)."""
    if args.seed is None:
        args.seed = random.randrange(1 << 32)
    print(f"seed {args.seed}", flush=True)
    r = random.Random(args.seed)
    if args.uri:
        host, port = args.uri.split(":")
        return r, None, Client(host, int(port))
    topologies.BINARY = args.binary
    server = topologies.ReplicaSet(1).members[0] if args.replica_set else Server(args.binary)
    return r, server, server.client
