#!/usr/bin/env python3
"""Writing for long: documents with two indexes and a TTL are inserted and expire, as many in as out, beside finds at a
steady rate. Prints a row for each ten seconds, and whether anything grows.

    bench/steady.py [--minutes N] [--rate DOCUMENTS_A_SECOND] [--life SECONDS]

--rate 0 (as is): as fast as they are taken. A document lives for --life seconds (60). MAYFLYD names another binary.
"""

import argparse, datetime, multiprocessing, os, select, shutil, socket, struct, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/fault"))
from fault_test import Client, start, stop

import bson

DIGITS = (0, 0, 0, 0, 1, 2, 1, 1, 0, 0, 1)  # of the columns
BATCH, FINDS, EVERY, CONNECTIONS = 500, 1000, 10, 8
TEXT = "The quick brown mayfly dances over the quiet stream for the one evening that it has, and then is gone. " * 2


def insert(port, which, rate, life, ended):
    """One of two writers: each takes every other batch, and half of the rate."""
    client = Client("127.0.0.1", port)
    began, n = time.monotonic(), 0
    while not ended.is_set():
        first = (2 * n + which) * BATCH
        due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=life)
        docs = [{"_id": i, "a": i % 1000, "b": i * 2654435761 % 2**31, "at": due, "text": TEXT}
                for i in range(first, first + BATCH)]
        reply = client.command("steady", {"insert": "c", "documents": docs, "ordered": False})
        if reply["ok"] != 1 or reply.get("writeErrors"):
            raise AssertionError(str(reply)[:300])
        n += 1
        if rate:
            ended.wait(max(0, began + n * BATCH / (rate / 2) - time.monotonic()))


def find(port, took, ended):
    """Open loop: a find counts from the moment it was due, however late the one before it came back."""
    body = bson.encode({"find": "kept", "filter": {"_id": 7}, "limit": 1, "singleBatch": True, "$db": "steady"})
    message = struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body
    links = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    by_fd, idle, due = {s.fileno(): s for s in links}, links[:], {}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    next_due, batch, sent = time.monotonic(), [], time.monotonic()
    while not ended.is_set():
        now = time.monotonic()
        while now >= next_due and idle:
            s = idle.pop()
            due[s.fileno()] = next_due
            s.sendall(message)
            next_due += 1 / FINDS
        for fd, _ in poll.poll(max(0, next_due - now) if idle else 1):
            by_fd[fd].recv(65536)
            batch.append(time.monotonic() - due[fd])
            idle.append(by_fd[fd])
        if now - sent > 0.5:
            took.put(batch)
            batch, sent = [], now


def disk(path):
    total = 0
    for name in os.listdir(path):
        try:
            total += os.stat(path + "/" + name).st_size
        except FileNotFoundError:
            pass  # a compaction's input
    return total


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def processor(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(took):
    all_of_them = []
    while not took.empty():
        all_of_them += took.get()
    return sorted(all_of_them) or [0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--rate", type=int, default=0)
    p.add_argument("--life", type=int, default=60)
    o = p.parse_args()
    work = tempfile.mkdtemp(prefix="mayfly-bench-steady-")
    proc, client = start(work + "/db")
    keys = [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"},
            {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 0}]
    client.command("steady", {"createIndexes": "c", "indexes": keys})
    client.command("steady", {"insert": "kept", "documents": [{"_id": 7}]})
    ended, took = multiprocessing.Event(), multiprocessing.Queue()
    others = [multiprocessing.Process(target=insert, args=(proc.port, i, o.rate, o.life, ended)) for i in range(2)]
    others.append(multiprocessing.Process(target=find, args=(proc.port, took, ended)))
    for other in others:
        other.start()
    columns = ("s", "in, a second", "out, a second", "stored", "server CPU us, one in and out", "find p99 ms",
               "p99.9 ms", "max ms", "disk MB", "resident MB", "write amplification")
    print("| " + " | ".join(columns) + " |")
    print("| ---: " * 11 + "|")
    began, before, rows = time.monotonic(), None, []
    while time.monotonic() - began < o.minutes * 60 + EVERY:
        status = client.command("admin", {"serverStatus": 1})
        now = (time.monotonic(), status["opcounters"]["insert"], status["metrics"]["ttl"]["deletedDocuments"],
               processor(proc.pid))
        late = drain(took)
        if before:
            s = now[0] - before[0]
            row = (now[0] - began, (now[1] - before[1]) / s, (now[2] - before[2]) / s, now[1] - now[2],
                   (now[3] - before[3]) * 1e6 / max(1, now[1] - before[1]), late[int(len(late) * 0.99)] * 1000,
                   late[int(len(late) * 0.999)] * 1000, late[-1] * 1000, disk(work + "/db") / 1e6,
                   resident(proc.pid) / 1e6, status["rocksdb"]["writes"]["amplification"])
            rows.append(row)
            print("| " + " | ".join(f"{x:.{n}f}" for x, n in zip(row, DIGITS)) + " |", flush=True)
        before = now
        time.sleep(EVERY)
    ended.set()
    for other in others:
        other.join(10)
        other.kill()
    stop(proc)
    shutil.rmtree(work, ignore_errors=True)
    # From two lives on as many go as come: the first half of that, and the second.
    steady = [r for r in rows if r[0] > 2 * o.life]
    if len(steady) < 4:
        return
    half = len(steady) // 2

    def means(column):
        return [sum(r[column] for r in part) / len(part) for part in (steady[:half], steady[half:])]

    print("\n| mean of | first half | second half |\n| --- | ---: | ---: |")
    for name, column in (("in, a second", 1), ("out, a second", 2), ("server CPU us", 4), ("disk MB", 8),
                         ("resident MB", 9)):
        print("| {} | {:.1f} | {:.1f} |".format(name, *means(column)))


if __name__ == "__main__":
    main()
