"""Ten faults of the server, each in a place that matters, and the part of a step of scripts/test that must go red.

A fault is a text of a file and what it is replaced by. The text must be there exactly once, so that a change of the
code that moves it away is noticed at once (`scripts/test layout`) and the fault is put back where it belongs.
"""

import dataclasses
import re


@dataclasses.dataclass
class Mutant:
    name: str
    file: str
    text: str
    instead: str
    step: str  # of scripts/test, that runs the command below
    # {build}: the folder with the mutated programs; {python}: with the packages that tests need. The folder of the
    # checkout is the working directory, and MAYFLYD the mutated server.
    command: str
    says: str  # in what it prints: it is red because of this, and of nothing else; a regular expression
    targets: tuple = ("mayflyd",)


def red_case(*names):
    """What Catch2 prints of a case that failed, one of those whose names begin so."""
    begins = "|".join(map(re.escape, names))
    return rf"(?m)^(?:{begins}).*\n(?:  .*\n)*-{{79}}\n(?:(?!-{{79}}$).*\n)*?.*: FAILED:"


GOLDEN = "{python} tests/golden/run.py --binary {build}/mayflyd "

MUTANTS = [
    Mutant(
        "an update leaves an index entry out",
        "storage/write/write_unit.cc",
        "[&](size_t k) { u.StageIndexPut(index, after.values(k), after.type_bits(k), record_id); });",
        "[&](size_t k) {\n"
        "          if (k != 0) u.StageIndexPut(index, after.values(k), after.type_bits(k), record_id);\n"
        "        });",
        "unit",
        "{build}/tests/storage_test [write]",
        red_case("Documents are found by _id, in _id order and by index"),
        ("storage_test",),
    ),
    Mutant(
        "a delete of bulkWrite needs no privilege",
        "server/privileges/writes.cc",
        "    if (first.name == \"delete\") actions.Add(Action::remove);\n",
        "",
        "durability",
        "{python} tests/fault/access_run.py granted",
        r"FAIL remove of bulkWrite",
    ),
    Mutant(
        "a write that is told to be on disk is not synced",
        "storage/kv/rocks_kv.cc",
        "    return sync ? SyncWal() : Ok();\n",
        "    return Ok();\n",
        "unit",
        "{build}/tests/storage_test [durability]",
        red_case("A batch that is told to be on disk survives power loss"),
        ("storage_test",),
    ),
    Mutant(
        "a document with two keys in an interval is returned twice",
        "query/plan/scan_stages.cc",
        "    if (!seen_.emplace(cursor_->record_key()).second) {\n",
        "    if (!seen_.emplace(cursor_->record_key()).second && false) {\n",
        "golden",
        GOLDEN + "tests/golden/find tests/golden/index",
        r"FAIL tests/golden/(find|index)/",
    ),
    Mutant(
        "what is due is removed a second too early",
        "ttl/ttl_reaper.cc",
        "  const int64_t threshold = rule.Threshold(at);\n",
        "  const int64_t threshold = rule.Threshold({at.millis + 1000});\n",
        "golden",
        GOLDEN + "tests/golden/ttl tests/golden/expiry",
        r"FAIL tests/golden/(ttl|expiry)/",
    ),
    Mutant(
        "reads show what is past its deadline",
        "storage/read/visibility.cc",
        "  if (expire_at && expire_at->millis <= now_.millis) {\n",
        "  if (expire_at && expire_at->millis <= 0) {\n",
        "golden",
        GOLDEN + "tests/golden/expiry",
        r"FAIL tests/golden/expiry",
    ),
    Mutant(
        "the record of a retryable write is lost",
        "server/execution/retryable_writes.cc",
        "    AppendStatementResult(r, &next_entries_, &next_last_);\n",
        "",
        "golden",
        GOLDEN + "tests/golden/replication",
        r"FAIL tests/golden/replication/5_retryable_writes",
    ),
    Mutant(
        "a member acknowledges entries of the log before they are on its disk",
        "replication/raft_node.cc",
        "  Result<void> written = WriteBatch(true);\n",
        "  Result<void> written = WriteBatch(false);\n",
        "unit",
        "{build}/tests/replication_test [simulation]",
        red_case("Three members", "Five members"),
        ("replication_test",),
    ),
    Mutant(
        "binary data sorts before strings",
        "protocol/bson_compare.cc",
        "  set(BsonType::kBinary, 30);\n",
        "  set(BsonType::kBinary, 12);\n",
        "unit",
        "{build}/tests/protocol_test [compare]",
        red_case("Values ascend in MongoDB's order"),
        ("protocol_test",),
    ),
    Mutant(
        "an aborted transaction leaves a lock",
        "storage/write/write_unit_impl.cc",
        "  for (uint64_t hash : locks) storage->locks.Unlock(hash, owner, changed);\n  locks.clear();\n",
        "  if (!applied && !locks.empty()) locks.pop_back();\n"
        "  for (uint64_t hash : locks) storage->locks.Unlock(hash, owner, changed);\n  locks.clear();\n",
        "golden",
        GOLDEN + "tests/golden/replication",
        r"FAIL tests/golden/replication",
    ),
]
