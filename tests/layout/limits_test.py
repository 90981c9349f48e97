#!/usr/bin/env python3
"""docs/limits.md has the numbers that the code has, and names only parameters and options that there are."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/limits.md").read_text()

# Row (how it begins): [(file, constant, unit)…]. The constant, divided by the unit, stands in the row.
K, M, MB = 1024, 1024 * 1024, 1024 * 1024
ROWS = {
    "message ": [("protocol/wire_message.h", "kMaxMessageSize", 1)],
    "fields of a command": [("server/dispatch/arg_reader.h", "kMaxCommandFields", 1)],
    "`lsid`": [("server/dispatch/arg_reader.h", "kMaxGenericBytes", K)],
    "document sequences": [
        ("protocol/wire_message.cc", "kMaxSequences", 1),
        ("protocol/wire_message.cc", "kMaxSequenceDocuments", 1),
    ],
    "writes in one command": [
        ("server/commands/update_cmd.cc", "kMost", 1),
        ("server/commands/bulk_write_cmd.cc", "kMaxOps", 1),
    ],
    "document |": [("protocol/bson_view.h", "kMaxBsonUserSize", M)],
    "nesting of a document": [("protocol/bson_view.h", "kMaxBsonDepth", 1)],
    "client metadata": [
        ("server/commands/hello_cmd.cc", "kMaxMetadataBytes", 1),
        ("server/commands/hello_cmd.cc", "kMaxAppNameBytes", 1),
    ],
    "an error's message": [("server/net/dispatcher.cc", "kMaxErrorMessage", K)],
    "write errors": [("server/execution/write_errors.cc", "kMostBytes", MB)],
    "reply |": [("server/dispatch/cursor_manager.h", "kMaxBatchBytes", M)],
    "name of a database": [
        ("storage/catalog/namespace.h", "kMaxDatabaseName", 1),
        ("storage/catalog/namespace.h", "kMaxNamespace", 1),
    ],
    "indexes of a collection": [("storage/schema/catalog_indexes.cc", "kMaxIndexes", 1)],
    "fields of an index": [("storage/catalog/index_kind.h", "kMaxIndexFields", 1)],
    "indexes in one": [("server/commands/create_indexes_cmd.cc", "kMaxSpecs", 1)],
    "keys of one document": [
        ("storage/catalog/index_keys.h", "kMaxKeysPerDocument", 1),
        ("storage/catalog/index_keys.h", "kMaxKeyBytes", MB),
    ],
    "new keys of": [("storage/write/write_unit.cc", "kMaxNewKeys", 1)],
    "one key": [("storage/catalog/index_keys.h", "kMaxKeySize", M)],
    "views on views": [("server/execution/view_definition.h", "kMaxViewDepth", 1)],
    "namespaces in `top`": [("server/base/top.h", "kMaxNamespaces", 1)],
    "messages of `validate`": [("storage/validate.cc", "kMaxReported", 1)],
    "errors of `validateDBMetadata`": [("server/commands/validate_metadata_cmd.cc", "kMostBytes", M)],
    "what the filters": [("query/expression/parse_work.h", "kMostBytes", MB)],
    "stages of a pipeline": [
        ("query/pipeline/pipeline.cc", "kMaxStages", 1),
        ("query/pipeline/pipeline.cc", "kMaxDepth", 1),
    ],
    "conditions in conditions": [("query/match/match_parse.cc", "kMaxDepth", 1)],
    "branches of an": [("query/plan/planner.cc", "kMaxBranches", 1)],
    "plans that compete": [
        ("query/plan/planner.cc", "kMaxCandidates", 1),
        ("query/plan/plan_cache.h", "kMaxEntries", 1),
    ],
    "regular expression": [
        ("query/expression/regex.cc", "kMaxPatternBytes", 1),
        ("query/expression/regex.cc", "kParensNestLimit", 1),
    ],
    "matching one": [("query/expression/regex.cc", "kMatchLimit", 1), ("query/expression/regex.cc", "kDepthLimit", 1)],
    "machine code": [("query/expression/regex.cc", "kMostMachineCode", MB)],
    "ways through": [("query/match/match_internal.h", "kMost", 1)],
    "`$densify`": [("query/pipeline/densify_stage.cc", "kMaxGenerated", 1)],
    "update path": [("query/update/apply_tree.cc", "kMaxPadding", 1)],
    "path of a projection": [("query/projection/projection_parse.cc", "kMaxPathParts", 1)],
    "explain |": [
        ("query/plan/index_bounds.h", "kMaxExplained", K),
        ("query/plan/plan_stage.cc", "kMaxExplained", K),
        ("query/plan/explain.cc", "kMaxQuery", M),
    ],
    "a value that": [("query/expression/operator.h", "kMaxValueBytes", M)],
    "large values of one": [("query/expression/pace.h", "kMaxOperationValues", M)],
    "folded constants": [("query/expression/parse.cc", "kMaxFolded", K)],
    "what one accumulator": [
        ("query/pipeline/accumulator.cc", "kMaxAccumulatorBytes", MB),
        ("query/pipeline/window_functions.cc", "kMaxComputedBytes", MB),
    ],
    "worker threads": [("server/base/worker_pool.cc", "kMaxExtra", 1)],
    "commands in full": [("server/dispatch/current_op.cc", "kMaxWholeCommands", M)],
    "HTTP request": [("server/http/http_server.cc", "kMaxBody", K)],
    "handshakes": [("replication/transport.h", "kMaxHandshakes", 1), ("replication/transport.h", "kMaxLinks", 1)],
    "sessions |": [
        ("server/base/session_registry.h", "kMaxSessions", 1),
        ("server/base/session_registry.h", "kMaxClientSessions", 1),
    ],
    "ids in one command": [("server/base/session_registry.h", "kMaxIds", 1)],
    "a line of the log": [("server/base/log_lines.cc", "kMaxAttributeBytes", K)],
    "`system.profile`": [
        ("server/dispatch/profiler.cc", "kProfileBytes", MB),
        ("server/dispatch/profiler.cc", "kMaxQueue", 1),
    ],
    "a command in `system.profile`": [("server/dispatch/profiler.cc", "kMaxCommandBytes", K)],
    "audit entries": [("server/dispatch/audit_log.h", "kMostWaiting", MB)],
    "configuration file": [
        ("server/base/config_file.cc", "kMostDepth", 1),
        ("server/base/config_file.cc", "kMostPairs", 1),
    ],
    "members;": [("replication/repl_config.cc", "kMaxMembers", 1), ("replication/repl_config.cc", "kMaxVoters", 1)],
    "name of a set": [("replication/repl_config.cc", "kMaxSetName", 1), ("replication/repl_config.cc", "kMaxHost", 1)],
    "tags of a member": [
        ("replication/repl_config.cc", "kMaxTags", 1),
        ("replication/repl_config.cc", "kMaxTagBytes", 1),
    ],
    "`getLastErrorModes`": [
        ("replication/repl_config.cc", "kMaxModes", 1),
        ("replication/repl_config.cc", "kMaxModeTags", 1),
    ],
    "a whole configuration": [("replication/repl_config.cc", "kMaxConfigBytes", K)],
    "priority of a member": [("replication/repl_config.cc", "kMaxPriority", 1)],
    "one unit of the log": [("replication/consensus.h", "kMaxProposalBytes", M)],
    "key file": [("server/replication_wiring.cc", "kMinKey", 1), ("server/replication_wiring.cc", "kMaxKey", 1)],
    "a frame between": [("replication/member_link.h", "kMaxLinkFrame", M)],
    "what waits to be sent": [
        ("replication/transport.cc", "kMaxQueuedBytes", M),
        ("replication/transport.cc", "kMaxQueued", 1),
    ],
    "what has come from": [("replication/engine.cc", "kMaxInboxBytes", M)],
    "copies that a donor": [("replication/data_copy.h", "kMost", 1)],
    "time of `$clusterTime`": [("server/dispatch/replication_gate.cc", "kMaxDriftSeconds", 24 * 3600)],
    "points in time kept": [
        ("server/dispatch/replication_gate.h", "kMost", 1),
        ("server/dispatch/replication_gate.h", "kMostOfAll", 1),
    ],
    "changes of the catalog": [("storage/catalog/catalog.h", "kMaxPast", 1)],
    "holds on a collection": [
        ("server/commands/ttl_control_cmd.cc", "kMaxHoldsACollection", 1),
        ("server/commands/ttl_control_cmd.cc", "kMaxReason", 1),
    ],
    "a reply of `ttlStatus`": [("server/execution/ttl_status.h", "kMostTtlReplyBytes", M)],
    "rules in `/metrics`": [("server/http/prometheus_text.h", "kMaxRules", 1)],
}


def value(files, name):
    """Of a constant, from the first of the files (divided by |) that has it."""
    for file in files.split("|"):
        if not (ROOT / file).exists():
            continue
        text = re.sub(r"//[^\n]*", "", (ROOT / file).read_text())
        if m := re.search(rf"constexpr [^;]*?\b{name} =\s*([^,;]*)[,;]", text):
            e = re.sub(r"\b(?:u?int\d+_t|size_t)\b", "", m[1]).replace("'", "").replace("{", "(").replace("}", ")")
            e = re.sub(r"(?<=\d)(?:u|l)+\b", "", e, flags=re.I)
            if re.fullmatch(r"[\d\s()*+<.-]+", e):
                return eval(e)  # digits and operators
    return None


passed = failed = 0


def expect(good, what):
    global passed, failed
    passed += good
    failed += not good
    if not good:
        print(f"FAIL {what}")


rows = [line[2:] for line in PAGE.split("\n") if line.startswith("| ")]
for begin, constants in ROWS.items():
    row = next((r for r in rows if r.startswith(begin)), None)
    if row is None:
        expect(False, f"no row begins with {begin!r}")
        continue
    numbers = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", row)}
    for file, name, unit in constants:
        v = value(file, name)
        expect(v is not None and v / unit in numbers, f"{name} of {file} is {v} (/ {unit}), and the page says: {row}")

code = subprocess.run(
    ["git", "grep", "-h", "-E", r'Add(Int|Bool|String|Double|\w*)\($|"[a-zA-Z]{6,}"', "--", "server/*.cc"],
    cwd=ROOT,
    capture_output=True,
    text=True,
).stdout
for row in rows:
    cells = row.split(" | ")
    for name in re.findall(r"`([^`]+)`", cells[-1]) if len(cells) == 4 else []:
        expect(
            f'"{name.lstrip("-")}"' in code or f'"{name}' in code or name in ("skip", "limit", "batchSize"),
            f"nothing is called {name}: {row}",
        )
print(f"limits: {passed} passed, {failed} failed")
sys.exit(failed > 0)
