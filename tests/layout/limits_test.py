#!/usr/bin/env python3
"""docs/limits.md has the numbers that the code has, and names only parameters and options that there are. Every
constant kMax… of the code is on the page, or is not for it and INTERNAL says why."""

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
    "message before a login": [("server/net/connection.cc", "kMaxBeforeLogin", 1)],
    "name of a user": [
        ("security/names.h", "kMaxPrincipalName", 1),
        ("security/saslprep.h", "kMaxPasswordBytes", 1),
    ],
    "a message of a login": [("security/scram.h", "kMaxScramPayload", 1)],
    "names in `usersInfo`": [("server/commands/users_info_cmds.cc", "kMaxAskedNames", 1)],
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
    "nesting of a document |": [("protocol/bson_view.h", "kMaxBsonDepth", 1)],
    "nesting of a command": [
        ("protocol/bson_view.h", "kMaxBsonDepth", 1),
        ("protocol/bson_validate.h", "kMaxMessageDepth", 1),
    ],
    "client metadata": [
        ("server/commands/hello_cmd.cc", "kMaxMetadataBytes", 1),
        ("server/commands/hello_cmd.cc", "kMaxAppNameBytes", 1),
    ],
    "an error's message": [("server/net/dispatcher.cc", "kMaxErrorMessage", K)],
    "write errors": [("server/execution/write_errors.cc", "kMaxBytes", MB)],
    "reply |": [("server/dispatch/cursor_manager.h", "kMaxBatchBytes", M)],
    "name of a database": [
        ("protocol/database_name.h", "kMaxDatabaseName", 1),
        ("storage/catalog/namespace.h", "kMaxNamespace", 1),
    ],
    "indexes of a collection": [("storage/schema/catalog_indexes.cc", "kMaxIndexes", 1)],
    "name of an index": [("server/execution/index_spec.h", "kMaxIndexName", 1)],
    "fields of an index": [("storage/catalog/index_kind.h", "kMaxIndexFields", 1)],
    "indexes in one": [("server/commands/create_indexes_cmd.cc", "kMaxSpecs", 1)],
    "keys of one document": [
        ("storage/catalog/index_keys.h", "kMaxKeysPerDocument", 1),
        ("storage/catalog/index_keys.h", "kMaxKeyBytes", MB),
    ],
    "new keys of": [
        ("storage/catalog/index_keys.h", "kMost", 1),
        ("storage/catalog/index_keys.h", "kMostBytes", MB),
    ],
    "keys that an index build": [("storage/schema/index_builder.cc", "kBatchKeyBytes", M)],
    "one key": [("storage/keys/key_encoding.h", "kMaxKeySize", M)],
    "views on views": [("server/execution/view_definition.h", "kMaxViewDepth", 1)],
    "namespaces in `top`": [("server/base/top.h", "kMaxNamespaces", 1), ("server/base/top.h", "kMaxNameBytes", 1)],
    "messages of `validate`": [("storage/validate.cc", "kMaxReported", 1)],
    "errors of `validateDBMetadata`": [("server/commands/validate_metadata_cmd.cc", "kMaxBytes", M)],
    "what the filters": [("query/expression/parse_work.h", "kMaxBytes", MB)],
    "stages of a pipeline": [
        ("query/pipeline/pipeline.cc", "kMaxStages", 1),
        ("query/pipeline/pipeline.cc", "kMaxPipelineDepth", 1),
    ],
    "conditions in conditions": [("query/match/match_parse.cc", "kMaxMatchDepth", 1)],
    "branches of an": [("query/plan/planner.cc", "kMaxBranches", 1)],
    "plans that compete": [
        ("query/plan/planner.cc", "kMaxCandidates", 1),
        ("query/plan/plan_cache.h", "kMaxEntries", 1),
        ("query/plan/plan_cache.h", "kMaxBytes", MB),
    ],
    "one shape in": [("query/plan/plan_cache.h", "kMaxEntryBytes", K)],
    "index filters (": [
        ("query/plan/index_filter.h", "kMax", 1),
        ("query/plan/index_filter.h", "kMaxOfCollection", 1),
    ],
    "an index filter": [("query/plan/index_filter.h", "kMaxBytes", K)],
    "details of a failed": [("query/match/explain_mismatch.h", "kMaxExplanation", K)],
    "a document between": [("query/pipeline/stage.h", "kMaxDocument", M)],
    "violations that": [("server/commands/coll_mod_cmd.cc", "kMaxBytes", M)],
    "open cursors": [("server/dispatch/cursor_limits.h", "kMaxCursors", 1)],
    "large values, documents": [("server/instance.cc", "kMaxLargeMemory", 1 << 30)],
    "messages and replies on": [("server/instance.cc", "kMaxNetworkMemory", 1 << 30)],
    "messages above 1 MB when": [("server/base/network_buffers.h", "kMaxMicros", 1_000_000)],
    "`electionTimeoutMillis`": [("replication/repl_config.cc", "kMinElectionMillis", 1)],
    "regular expression": [
        ("query/expression/regex.cc", "kMaxPatternBytes", 1),
        ("query/expression/regex.cc", "kMaxInOneGo", K),
        ("query/expression/regex.cc", "kParensNestLimit", 1),
    ],
    "matching one": [("query/expression/regex.cc", "kMatchLimit", 1), ("query/expression/regex.cc", "kDepthLimit", 1)],
    "machine code": [("query/expression/regex.cc", "kMaxMachineCode", MB)],
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
    "worker threads": [("server/base/worker_pool.h", "kMaxExtra", 1)],
    "commands in full": [("server/execution/current_op.cc", "kMaxWholeCommands", M)],
    "HTTP request": [("server/http/http_server.cc", "kMaxBody", K), ("server/http/http_server.cc", "kMaxHeader", K)],
    "logins by HTTP": [
        ("server/http/http_login.cc", "kMaxAuthorization", K),
        ("server/http/http_login.cc", "kMaxChecks", 1),
    ],
    "handshakes": [("replication/transport.h", "kMaxHandshakes", 1), ("replication/transport.h", "kMaxLinks", 1)],
    "privileges of a role": [
        ("security/privilege.h", "kMaxPrivileges", 1),
        ("security/role_graph.h", "kMaxResolvedPrivileges", 1),
    ],
    "roles of a user, with": [
        ("security/role_graph.h", "kMaxResolvedRoles", 1),
        ("security/role_graph.h", "kMaxResolvedRoleBytes", M),
    ],
    "memory of the privileges of all": [("security/user_cache.h", "kSmall", K)],
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
    "the profiler's filter": [
        ("server/dispatch/profiler.h", "kMaxFilterBytes", K),
        ("server/dispatch/profiler.h", "kMaxFilterMicros", 1000),
    ],
    "databases with settings": [("server/dispatch/profiler.h", "kMaxDatabases", 1)],
    "filters of a TTL index": [("ttl/ttl_reaper.cc", "kMaxFilterMicros", 1_000_000)],
    "the validator of an archive": [("storage/write/archive.cc", "kMaxValidatorMicros", 1_000_000)],
    "a command in `system.profile`": [("server/dispatch/profiler.cc", "kMaxCommandBytes", K)],
    "audit entries that": [("server/dispatch/audit_log.h", "kMaxWaiting", MB)],
    "an audit filter": [("server/dispatch/audit_options.h", "kMaxAuditFilter", K)],
    "a value among a command's arguments": [
        ("server/dispatch/audit_events.h", "kMaxAuditValue", K),
        ("server/dispatch/audit_events.h", "kMaxAuditArguments", K),
    ],
    "audit entries about": [
        ("server/dispatch/audit_log.h", "kAnonymousBurst", 1),
        ("server/dispatch/audit_log.h", "kAnonymousPerSecond", 1),
    ],
    "refused commands in the audit log": [
        ("server/dispatch/refused_commands.h", "kDefaultLimit", 1),
        ("server/dispatch/refused_commands.h", "kShares", 1),
    ],
    "users and addresses whose refused": [("server/dispatch/refused_commands.h", "kMaxClients", 1)],
    "roles in an audit entry": [
        ("server/dispatch/audit_log.cc", "kMaxAuditRoles", 1),
        ("server/dispatch/audit_log.cc", "kMaxAuditRoleBytes", K),
    ],
    "entries of the audit log, and lines of the log, about failed": [
        ("security/failed_logins.h", "kOfMinute", 1),
        ("security/failed_logins.h", "kBurst", 1),
    ],
    "addresses whose failed": [("security/failed_logins.h", "kMaxClients", 1)],
    "configuration file": [
        ("server/base/config_file.cc", "kMaxYamlDepth", 1),
        ("server/base/config_file.cc", "kMaxPairs", 1),
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
    "one unit of the log": [
        ("storage/write/log_format.h", "kMaxLogUnitBytes", M),
        ("replication/consensus.h", "kMaxProposalBytes", M),
    ],
    "a transaction's entries": [
        ("storage/write/transaction_unit.h", "kMaxTransactionEntryBytes", M),
        ("storage/write/transaction_unit.h", "kMaxTransactionBytes", M),
    ],
    "collections that a transaction makes": [("storage/write/transaction_unit.h", "kMaxTransactionCollections", 1)],
    "open transactions": [
        ("server/execution/transactions.h", "kMaxOpenTransactions", 1),
        ("server/execution/transactions.h", "kMaxTransactionsOfClient", 1),
    ],
    "newer snapshots for the first statement": [("server/execution/transactions.cc", "kMaxRenewals", 1)],
    "key file": [
        ("security/key_file.cc", "kMinKey", 1),
        ("security/key_file.cc", "kMaxKey", 1),
        ("security/key_file.cc", "kMaxKeyFile", K),
        ("security/key_file.h", "kMaxMemberKeys", 1),
    ],
    "a frame between": [("replication/member_link.h", "kMaxLinkFrame", M)],
    "what waits to be sent": [
        ("replication/transport.cc", "kMaxQueuedBytes", M),
        ("replication/transport.cc", "kMaxQueued", 1),
    ],
    "what has come from": [("replication/engine.cc", "kMaxInboxBytes", M)],
    "copies that a donor": [("replication/data_copy.h", "kMost", 1)],
    "time of `$clusterTime`": [("server/dispatch/replication_gate.cc", "kMaxDriftSeconds", 24 * 3600)],
    "points in time kept for snapshot reads without": [("server/dispatch/snapshot_points.h", "kMostUnused", 1)],
    "points in time kept for snapshot reads with a": [
        ("server/dispatch/snapshot_points.h", "kMostUsed", 1),
        ("server/dispatch/snapshot_points.h", "kMostUsedOfOwner", 1),
    ],
    "options of a collection or view": [("storage/schema/definition_memory.h", "kMaxDefinition", M)],
    "changes of the catalog": [("storage/catalog/catalog.h", "kMaxPast", 1)],
    "files of a backup": [("backup/manifest.h", "kMaxFiles", 1), ("backup/manifest.h", "kMaxBytes", M)],
    "holds on a collection": [
        ("server/commands/ttl_control_cmd.cc", "kMaxHoldsACollection", 1),
        ("server/commands/ttl_control_cmd.cc", "kMaxReason", 1),
    ],
    "a hold's filter": [
        ("server/commands/ttl_control_cmd.cc", "kMaxHoldFilter", K),
        ("server/commands/ttl_control_cmd.cc", "kMaxHoldBytesACollection", MB),
        ("ttl/ttl_controls.h", "kMaxHoldBytes", MB),
    ],
    "all pauses": [("ttl/ttl_controls.h", "kMaxPauseBytes", MB), ("ttl/ttl_controls.h", "kEntry", 1)],
    "the message of `rotateCertificates`": [("server/commands/tls_cmds.cc", "kMaxMessage", 1)],
    "a reply of `ttlStatus`": [("server/execution/ttl_status.h", "kMaxTtlReplyBytes", M)],
    "rules in `/metrics`": [("server/http/prometheus_text.h", "kMaxRules", 1)],
}

# What is no limit that somebody meets: file or folder and constant (or all of them): why.
INTERNAL = {
    "protocol/bson_check.cc kMaxChecked": "beyond it a message is checked elsewhere",
    "protocol/bson_view.h kMaxKey": "a type",
    "protocol/secret_names.cc kMaxName": "of a field that is shown; the beginning of the name decides",
    "protocol/bson_builder.h kMaxLength": "a type's range",
    "protocol/bson_view.h kMaxBsonInternalSize": "the document's, with room for what goes around it",
    "protocol/decimal128.cc kMaxCoefficient": "arithmetic",
    "protocol/json_reader.cc kMaxDepth": "more than a document's",
    "query/plan/neighbours.h kMaxFailures": "how rarely a walk is tried, not whether it may",
    "server/execution/write_ops.cc kMaxShown": "of a document in a log line; of longer ones the size is told",
    "server/dispatch/redacted_command.cc kMaxFields": "of what is looked at in a log line; behind it little is shown",
    "server/dispatch/redacted_command.cc kMaxShownOfUsers": "of a field in a log line; longer ones are hidden",
    "server/dispatch/redacted_command.cc kMaxName": "of a field that is shown; the beginning of the name decides",
    "server/dispatch/redacted_command.h kMaxLook": "of a command in a log line; behind it little is shown",
    "storage/read/record_walk.h kMaxSkipped": "of one step of an iterator; records that lie apart are looked up",
    "replication/byte_stream.cc kMaxRecords": "of one read; the next read goes on",
    "security/time_keys.cc kMaxTimeKeys": "older ones are of no use to anybody",
    "server/dispatch/parameter_table.cc kMaxTimeKeySeconds": "of a parameter at start-up, by the administrator",
    "server/dispatch/cursor_manager.h kMaxOriginatingCommand": "what currentOp and profile show of a cursor's command",
    "server/base/environment.cc kMaxSmallFile": "a file of the administrator's, read at start-up",
    "protocol/secret_arguments.cc kMaxLeft": "what is passed on at start-up, by the administrator",
    "protocol/secret_arguments.cc kMaxPassword": "typed at start-up, by the administrator",
    "server/execution/point_groups.h kMaxPointsOfBucket": "the next bucket takes the rest",
    "server/execution/point_groups.h kMaxBytesOfBucket": "the next bucket takes the rest",
    "query/pipeline/bucket_filter.cc kMaxFilterDepth": "a deeper filter is asked of the points",
    "query/pipeline/bucket_filter.h kMaxMeasuredConditions": "further conditions are asked of the points",
    "server/dispatch/redacted_command.cc kMaxValue": "what an error or log shows of a value",
    "query/expression/array_ops.cc kMaxFolded": "beyond it nothing is folded",
    "query/expression/element_text.cc": "what an error quotes of a value",
    "query/expression/nesting.h kMaxValueDepth": "the page has it with the reply around",
    "server/dispatch/refused_commands.h kMaxLimit": "of a parameter: docs/operations.md has it",
    "query/expression/zone_names.cc": "of files of the system that are looked at; clients cannot reach them",
    "query/expression/regex.cc kMaxCounted": "an estimate of what a pattern costs",
    "query/pipeline/group_stage.cc kMaxMerged": "memory limit of $group",
    "query/pipeline/group_stage.cc kMaxPlain": "larger documents are read in steps that can be interrupted",
    "query/pipeline/lookup_stage.cc kMaxKept": "a cache",
    "query/plan/find_executor.cc": "the race of plans",
    "query/plan/planner.cc kMaxDisjunctions": "which plans are looked at",
    "query/plan/planner.cc kMaxMerged": "which plans are looked at",
    "query/plan/stages.h": "records read ahead",
    "query/sort/sorter.cc kMaxRuns": "beyond it runs are merged",
    "replication/applier.cc kMaxApplierWait": "flow control",
    "replication/log_archiver.cc kMaxBackoffMillis": "the page says it with the command's time",
    "replication/log_segment.cc kMaxBlock": "an entry's, with room for what goes around it",
    "replication/log_segment.cc kMaxBlockEntries": "the next block begins; beyond it a segment is damaged",
    "replication/member_link.cc kMaxKeys": "a cache",
    "replication/member_link.cc kMaxHandshake": "a member's own message",
    "replication/raft_node.cc": "flow control of members, more nodes than a set has members",
    "replication/repl_config.cc kMaxVersion": "a type's range",
    "replication/replicated_committer.cc kMaxWaitForRoom": "flow control",
    "replication/transport.cc kMaxCallers": "a memory of callers",
    "replication/transport.cc kMaxRefusals": "a memory of refusals",
    "security/": "the documents of users and roles",
    "server/commands/capped_cmds.cc kMaxCappedBytes": "the page has it as a power",
    "server/dispatch/config.h kMaxWireVersion": "a version",
    "server/execution/current_op.cc kMaxCopied": "beyond it the page's 32 MiB count",
    "server/execution/current_op.cc kMaxCommentFields": "beyond it a command is copied elsewhere",
    "server/dispatch/cursor_manager.cc kMaxField": "what is remembered of a cursor",
    "server/dispatch/cursor_manager.h kMaxGone": "a memory of cursors, for their errors",
    "server/dispatch/short_reads.cc": "where a read runs",
    "server/dispatch/short_reads.h": "where a read runs",
    "server/dispatch/parameter_table.cc kMax": "a type's range",
    "server/execution/change_stream_cursor.cc kMaxFragment": "$changeStreamSplitLargeEvent",
    "server/http/http_login.cc kMaxKnown": "a memory of logins",
    "server/http/local_command.cc kMaxMicros": "a page's time",
    "server/net/connection.cc": "turns of connections",
    "server/net/connection_gate.cc kMaxMembers": "the page has what it leaves for clients",
    "storage/keys/": "formats",
    "storage/kv/rocks_tuning.cc kMaxPinnedTableBytes": "tuning",
    "storage/schema/garbage.cc kMaxReclaimed": "one step of the removal of what was dropped",
    "storage/write/document_diff.cc kMaxElements": "more than a document has",
    "storage/write/local_committer.cc kMaxWaitForRoom": "flow control",
    "timeseries/": "the format of buckets, which no command makes yet",
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
            e = re.sub(r"\bk[A-Z]\w*", lambda m: str(anywhere(file, m[0])), e)
            if re.fullmatch(r"[\d\s()*+<.-]+", e):
                return eval(e)  # digits and operators
    return None


def anywhere(file, name):
    """Of a constant that `file` uses: from there, or from the one file that has it."""
    files = {f for f, n in CONSTANTS if n == name}
    return value(file if file in files or len(files) != 1 else files.pop(), name)


def constants():
    """(file, name) of each kMax… and the like in the product."""
    found = subprocess.run(
        ["git", "grep", "-E", r"\bk(Max|Min|Most|Mi)[A-Za-z]* =", "--", "*.h", "*.cc", ":!tests", ":!bench"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    return {(line.split(":", 1)[0], n) for line in found.splitlines() for n in re.findall(r"\b(k[A-Z]\w*) =", line)}


CONSTANTS = constants()
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

on_page = {(file, name) for constants in ROWS.values() for files, name, _ in constants for file in files.split("|")}
used = set()
for file, name in sorted(CONSTANTS):
    if not name.startswith("kMax"):
        continue
    why = [i for i in INTERNAL if f"{file} {name}" == i or file == i or i.endswith("/") and file.startswith(i)]
    used.update(why)
    known = (file, name) in on_page or why != []
    expect(known, f"{name} of {file} is a limit: it belongs on the page, or in INTERNAL with a word why")
for i in sorted(INTERNAL.keys() - used):
    expect(False, f"INTERNAL has {i}, and the code has not")

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
