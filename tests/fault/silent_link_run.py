#!/usr/bin/env python3
"""Links between members that fall silent without being closed, while a member copies the data.

  - the connections to the donor carry nothing any more, new ones do: the copy goes on where it was, on a new one;
  - the donor cannot be reached any more and another member leads: the copy is taken from that one;
  - meanwhile the set works, and in the end all members hold the same.

The last line says "N passed, N failed". MAYFLY_SYNC_MB (24): data to copy.
"""

import os, time

from proxy import Network
from fault_test import rnd
from replica_set import Checks, Member, ReplicaSet

MEGABYTES = int(os.environ.get("MAYFLY_SYNC_MB", "24"))
check = Checks()
# A link may be silent for 15 s before a copy is tried on a new one.
PATIENCE = 60


def between(a, b):
    return {(a, b), (b, a)}


def log_of(member):
    return open(f"{member.folder}/log", errors="replace").read()


def copied(member):
    """Bytes of the copy that have come."""
    folder, size = f"{member.folder}/data/.resync/incoming", 0
    try:
        for f in os.listdir(folder):
            size += os.path.getsize(f"{folder}/{f}")
    except FileNotFoundError:
        pass
    return size


def join(s, network, **settings):
    m = Member(f"{s.folder}/{len(s.members)}", network=network, name=f"m{len(s.members)}")
    m.start()
    m.wait_up()
    s.members.append(m)
    primary = s.primary().client.admin
    config = primary.command("replSetGetConfig")["config"]
    config["version"] += 1
    config["members"].append({"_id": len(config["members"]), "host": m.host, **settings})
    primary.command("replSetReconfig", config)
    return m


def slow_join(s, network):
    """A member without a vote, a part of whose copy has come."""
    m = join(s, network, priority=0, votes=0)
    s.wait(lambda: copied(m) > 2 << 20, "the copy to begin", PATIENCE)
    return m


def main():
    network = Network()
    s = ReplicaSet(0)
    try:
        # Data that is in no log: who joins needs a copy.
        first = Member(f"{s.folder}/0", network=network, name="m0")
        first.start(replica_set=False)
        first.wait_up()
        for i in range(MEGABYTES):
            first.client.test.kept.insert_many(
                [{"_id": i * 100 + n, "bytes": rnd.randbytes(10_000)} for n in range(100)]
            )
        first.stop()
        first.start()
        first.wait_up()
        s.members.append(first)
        first.client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.host}]})
        second = join(s, network)
        s.wait(lambda: second.hello().get("secondary"), "the second member to follow", 120)
        s.all_vote(2)
        # Each answer of a donor takes a while from here on.
        slow = {(a, b): 0.1 for a in ("m0", "m1") for b in ("m2", "m3")}
        network.set(delays=slow)

        joiner = slow_join(s, network)
        network.lose(between(joiner.name, first.name))
        began, had = time.monotonic(), copied(joiner)
        s.wait(
            lambda: "Initial sync was interrupted and continues" in log_of(joiner),
            "the silent link to be given up",
            PATIENCE,
        )
        gave_up = time.monotonic() - began
        check(copied(joiner) >= had, f"a copy whose link fell silent goes on where it was, after {gave_up:.1f} s")
        first.client.test.kept.insert_one({"_id": "meanwhile"})
        s.wait(lambda: joiner.hello().get("secondary"), "the member to follow", 120)
        check(True, f"and the member follows {time.monotonic() - began:.1f} s after the link fell silent")

        other = slow_join(s, network)
        donor = s.primary()
        network.set(cut=between(other.name, donor.name), delays=slow)
        began = time.monotonic()
        donor.client.admin.command("replSetStepDown", 60, secondaryCatchUpPeriodSecs=10)
        s.wait(lambda: s.primary() is not donor, "another primary", PATIENCE)
        s.wait(lambda: other.hello().get("secondary"), "the member to follow another donor", 150)
        check(
            "another member leads by now" in log_of(other),
            f"a copy whose donor cannot be reached is taken from who leads: {time.monotonic() - began:.1f} s",
        )

        network.heal()
        s.primary().client.test.kept.insert_one({"_id": "after"})
        s.settled(120)
        check(s.same(), "all members hold the same")
    finally:
        s.close()
        network.close()
    check.end("silent links")


if __name__ == "__main__":
    main()
