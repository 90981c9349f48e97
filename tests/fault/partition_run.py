#!/usr/bin/env python3
"""Cuts the network of a set of three under load, again and again (MAYFLY_FAULT_ROUNDS, 8; MAYFLY_SEED), and looks
afterwards as replica_set_run.py does: no acknowledged write is lost, nothing that expired comes back, all members hold
the same.

Members and clients reach each other through proxy.py. Some clients live beside the primary ("near"), the others
elsewhere ("far"); when the primary is cut off together with its clients, those elsewhere go on. Rounds beyond the
eighth choose at random and sometimes kill a member besides. The last line says "N passed, N failed".
"""

import os, time

from fault_test import SEED, random_moment, rnd
from load import Watcher, Writers, verdict
from proxy import Network
from replica_set import Checks, ReplicaSet

ROUNDS = int(os.environ.get("MAYFLY_FAULT_ROUNDS", "8"))
NEAR, FAR = "zone-near", "zone-far"


def both(a, b):
    return {(a, b), (b, a)}


def apart(side, other):
    return set().union(*(both(a, b) for a in side for b in other))


def primary_alone(net, p, a, b):
    net.set(apart([p], [a, b]))


def primary_mute(net, p, a, b):
    net.set({(p, a), (p, b)})


def primary_deaf(net, p, a, b):
    net.set({(a, p), (b, p)})


def primary_with_its_clients(net, p, a, b):
    net.set(apart([p, NEAR], [a, b, FAR]))


def flapping(net, p, a, b):
    for _ in range(10):
        net.set(apart([p], rnd.choice([[a], [b], [a, b]])))
        random_moment(0.05, 0.5)
        net.heal()
        random_moment(0.05, 0.5)


def secondary_alone(net, p, a, b):
    net.set(apart([a], [p, b]))


def one_link(net, p, a, b):
    net.set(both(p, a))


def slow(net, p, a, b):
    net.set((), {(x, y): 0.15 for x, y in both(p, a) | both(a, b)} | {(x, y): 0.04 for x, y in both(p, b)})


# The worst first: a short run has no others.
KINDS = [primary_with_its_clients, flapping, primary_deaf, primary_alone, primary_mute, secondary_alone, one_link, slow]


def main():
    print(f"seed {SEED}")
    check = Checks()

    net = Network()
    s = ReplicaSet(network=net)
    try:
        s.initiate()
        p = s.primary()
        p.patient.test.short.create_index("at", expireAfterSeconds=0)
        p.patient.test.kept.create_index("n")
        near = Writers(f"{s.uri}&appName={NEAR}", 2, "near", 4)
        far = Writers(f"{s.uri}&appName={FAR}", 2, "far", 4)
        watchers = [Watcher(f"{s.uri}&appName={z}", 4) for z in (NEAR, FAR)]
        for r in range(ROUNDS):
            near.go_on(s, 50)
            far.go_on(s, 50)
            kind = KINDS[r] if r < len(KINDS) else rnd.choice(KINDS)
            primary = s.primary()
            a, b = rnd.sample([m for m in s.members if m is not primary], 2)
            dead = rnd.choice([a, b]) if r >= len(KINDS) and kind in (slow, flapping) and rnd.random() < 0.5 else None
            began = time.monotonic()
            if dead:
                dead.kill()
            kind(net, primary.name, a.name, b.name)
            far.go_on(s, 50)
            print(
                f"     round {r}: {kind.__name__}{' and a member killed' if dead else ''}: "
                f"writes go on within {time.monotonic() - began:.1f} s",
                flush=True,
            )
            net.heal()
            if dead:
                dead.start()
                dead.wait_up()
            s.in_place()
            check(s.primary() is not None, f"one primary after round {r}: {kind.__name__}")
        for w in (near, far):
            w.go_on(s, 50)
        for w in watchers:
            w.finish(s)
        for w in (near, far):
            w.finish()
        verdict(s, check, [near, far], watchers, f"{ROUNDS} partitions")
    finally:
        s.close()
        net.close()
    check.end("partitions")


if __name__ == "__main__":
    main()
