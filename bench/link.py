#!/usr/bin/env python3
"""What mayfly-link carries from a set of one member to another: a copy, changes at a steady rate, a mass expiry.

    bench/link.py [DOCUMENTS]      of the copy and of the mass expiry (200,000)

Prints rows: documents a second, CPU of the link, of the target and of the source (with its own work, such as expiry)
for each, and how far the target is behind.
"""

import datetime, sys, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import until
from link_run import Pair

DOCUMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
TEXT = "The quick brown mayfly dances over the quiet stream for the one evening that it has, and then is gone."
BATCH = 1000


def cpu(pid):
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def row(what, documents, seconds, link, target, source, rest=""):
    each = [f"{t * 1e6 / documents:.1f}" for t in (link, target, source)]
    print(f"| {what} | {documents / seconds:,.0f} | {' | '.join(each)} | {rest} |", flush=True)


def fill(collection, first, count, **more):
    for i in range(first, first + count, BATCH):
        collection.insert_many([{"_id": j, "n": j, "text": TEXT, **more} for j in range(i, i + BATCH)])


class Measured:
    """CPU of the link and of both primaries, and the time, between two moments."""

    def __init__(self, pair, link):
        self.pids = link.proc.pid, pair.b.set.primary().proc.pid, pair.a.set.primary().proc.pid
        self.began, self.cpu = time.monotonic(), [cpu(p) for p in self.pids]

    def end(self):
        return time.monotonic() - self.began, *(cpu(p) - c for p, c in zip(self.pids, self.cpu))


def main():
    print("| what | documents/s | link CPU us | target CPU us | source CPU us | |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    with Pair() as p:
        source, target = p.a.client.app, p.b.client.app
        fill(source.copied, 0, DOCUMENTS)
        link = p.link()
        m = Measured(p, link)
        until(lambda: link.state() == "following", 600)
        row("copy", DOCUMENTS, *m.end())

        # One after the other at a steady rate; how old each is when it can be read at the target.
        lags, over = [], threading.Event()

        def look():
            seen = 0
            while not over.is_set():
                newest = target.steady.find_one({}, sort=[("_id", -1)])
                if newest and newest["_id"] != seen:
                    seen = newest["_id"]
                    lags.append(time.time() - newest["at"])

        watcher = threading.Thread(target=look)
        m = Measured(p, link)
        watcher.start()
        began, sent = time.time(), 0
        while time.time() - began < 10:
            source.steady.insert_many([{"_id": sent + i, "at": time.time(), "text": TEXT} for i in range(100)])
            sent += 100
            ahead = began + sent / 10_000 - time.time()
            if ahead > 0:
                threading.Event().wait(ahead)  # sleeps: a steady rate
        link.follows()
        over.set()
        watcher.join()
        lags.sort()
        p50, p99 = (lags[int(len(lags) * share)] * 1000 for share in (0.5, 0.99))
        row("inserts at up to 10,000/s", sent, *m.end(), f"behind: {p50:.0f} ms, p99 {p99:.0f} ms")

        p.a.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        source.due.create_index("at", expireAfterSeconds=0)
        fill(source.due, 0, DOCUMENTS, at=datetime.datetime(2020, 1, 1))
        p.b.run("admin", {"setParameter": 1, "ttlMonitorEnabled": False})
        link.follows()
        m = Measured(p, link)
        p.a.run("admin", {"setParameter": 1, "ttlMonitorEnabled": True})
        until(lambda: source.due.estimated_document_count() == 0, 600)
        gone = time.monotonic()
        until(lambda: target.due.estimated_document_count() == 0, 600)
        row("mass expiry", DOCUMENTS, *m.end(), f"{time.monotonic() - gone:.1f} s behind the source")


if __name__ == "__main__":
    main()
