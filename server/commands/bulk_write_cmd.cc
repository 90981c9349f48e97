#include <limits>

#include "protocol/utf8.h"
#include "server/dispatch/arg_reader.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

constexpr size_t kMaxOps = 100'000;
constexpr std::string_view kNamespace = "admin.$cmd.bulkWrite";

/// One entry of `ops`: exactly one kind of write on one of the namespaces.
struct BulkOp {
  enum class Kind : uint8_t { kInsert, kUpdate, kDelete } kind = Kind::kInsert;
  size_t ns = 0;
  BsonView document;     ///< kInsert
  ExpirySetting expiry;  ///< kInsert; an update has its own
  UpdateStatement update;
  DeleteStatement remove;
};

bool SameExpiry(const ExpirySetting& a, const ExpirySetting& b) {
  return a.kind == b.kind && a.seconds == b.seconds && a.at == b.at;
}

struct BulkCounts {
  int64_t errors = 0, inserted = 0, matched = 0, modified = 0, upserted = 0, deleted = 0;
};

Result<void> CheckHint(BsonValue hint) {
  if (!hint.missing() && !hint.IsString() && !hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  return Ok();
}

Result<BulkOp> ParseOp(BsonView doc, size_t namespaces, Instant now) {
  ArgReader in("bulkWrite.ops", doc);
  BulkOp op;
  std::string_view kind = doc.empty() ? std::string_view() : doc.First().name;
  if (kind != "insert" && kind != "update" && kind != "delete")
    return Error{ErrorCode::kFailedToParse,
                 "an entry of bulkWrite.ops must begin with insert, update or delete, not '" +
                     std::string(kind) + "'"};
  const int64_t ns = in.Int64(kind);
  ExpirySetting expiry;
  if (kind != "delete") {
    BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
    const bool preserve = kind == "update" && in.BoolOr("preserveExpiry", false);
    MAYFLY_TRY(expiry, ParseExpiryFields(after, at, preserve, now, "bulkWrite.ops"));
  }
  if (kind == "insert") {
    op.kind = BulkOp::Kind::kInsert;
    op.document = in.Document("document");
    op.expiry = expiry;
  } else if (kind == "update") {
    op.kind = BulkOp::Kind::kUpdate;
    UpdateStatement& u = op.update;
    u.expiry = expiry;
    u.filter = in.Document("filter");
    u.update = in.Any("updateMods");
    if (u.update.missing())
      in.Fail({ErrorCode::kMissingField,
               "BSON field 'bulkWrite.ops.updateMods' is missing but a required field"});
    u.multi = in.BoolOr("multi", false);
    u.upsert = in.BoolOr("upsert", false);
    in.BoolOr("upsertSupplied", false);
    u.hint = in.Any("hint");
    u.sort = in.DocumentOr("sort");
    if (auto filters = in.OptArray("arrayFilters"))
      for (const BsonElement& e : *filters) {
        if (!e.value.IsDocument())
          in.Fail({ErrorCode::kTypeMismatch, "BSON field 'bulkWrite.ops.arrayFilters." +
                                                 std::string(e.name) + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'object'"});
        else
          u.array_filters.push_back(e.value.Document());
      }
    in.SimpleCollation();
    u.constants = in.OptDocument("constants");
    if (in.ok() && u.constants && !u.update.IsArray())
      return Error{LocationCode(51198),
                   "Constant values may only be specified for pipeline updates"};
    if (in.ok() && u.multi && !u.sort.empty())
      return Error{ErrorCode::kFailedToParse, "Cannot specify sort with multi=true"};
    MAYFLY_TRY(CheckHint(u.hint));
  } else {
    op.kind = BulkOp::Kind::kDelete;
    op.remove.filter = in.Document("filter");
    op.remove.multi = in.BoolOr("multi", false);
    op.remove.hint = in.Any("hint");
    in.SimpleCollation();
    MAYFLY_TRY(CheckHint(op.remove.hint));
  }
  MAYFLY_TRY(in.Finish());
  if (ns < 0 || static_cast<size_t>(ns) >= namespaces)
    return Error{ErrorCode::kBadValue, "BulkWrite ops entry {" + std::string(kind) + ": " +
                                           std::to_string(ns) + "} has an invalid nsInfo index."};
  op.ns = static_cast<size_t>(ns);
  return op;
}

struct BulkNamespace {
  std::string_view db, collection;
  std::unique_ptr<WriteCommand> command;
};

Result<BulkNamespace> ParseNamespace(BsonView doc) {
  ArgReader in("bulkWrite.nsInfo", doc);
  const std::string_view ns = in.String("ns");
  in.NotSupported("collectionUUID");
  in.NotSupported("encryptionInformation");
  MAYFLY_TRY(in.Finish());
  const NamespaceParts parts = SplitNamespace(ns);
  if (!parts.whole())
    return Error{ErrorCode::kInvalidNamespace,
                 "Invalid namespace specified for bulkWrite: '" + std::string(ns) + "'"};
  BulkNamespace n;
  n.db = parts.db;
  n.collection = parts.collection;
  MAYFLY_TRY(ValidateNamespace(n.db, n.collection));
  return n;
}

/// The replies of the ops, in order, and what they add up to.
class BulkReply {
 public:
  explicit BulkReply(bool errors_only) : errors_only_(errors_only) {}

  void Inserted(size_t index) {
    ++counts.inserted;
    if (!errors_only_) Add(index, true, [](BsonBuilder& b) { b.Append("n", int32_t{1}); });
  }
  void Updated(size_t index, int64_t matched, int64_t modified, BsonValue upserted) {
    counts.matched += matched;
    counts.modified += modified;
    if (!upserted.missing()) ++counts.upserted;
    if (errors_only_) return;
    Add(index, true, [&](BsonBuilder& b) {
      const int64_t n = matched + (upserted.missing() ? 0 : 1);
      b.Append("n", static_cast<int32_t>(n)).Append("nModified", static_cast<int32_t>(modified));
      if (!upserted.missing()) b.OpenDocument("upserted").Append("_id", upserted);
    });
  }
  void Deleted(size_t index, int64_t n) {
    counts.deleted += n;
    if (!errors_only_)
      Add(index, true, [&](BsonBuilder& b) { b.Append("n", static_cast<int32_t>(n)); });
  }
  void Failed(size_t index, BulkOp::Kind kind, const Error& e) {
    ++counts.errors;
    Add(index, false, [&](BsonBuilder& b) {
      b.Append("code", static_cast<int32_t>(e.code))
          .Append("errmsg", IsUtf8(e.message) ? e.message : PrintableUtf8(e.message));
      if (!e.details.empty()) b.AppendAll(BsonView(e.details.data()));
      b.Append("n", int32_t{0});
      if (kind == BulkOp::Kind::kUpdate) b.Append("nModified", int32_t{0});
    });
  }
  std::vector<BsonDocument> TakeItems() { return std::move(items_); }

  BulkCounts counts;

 private:
  template <class F>
  void Add(size_t index, bool ok, F&& fill) {
    items_.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("ok", ok ? 1.0 : 0.0).Append("idx", static_cast<int32_t>(index));
      fill(b);
    }));
  }
  const bool errors_only_;
  std::vector<BsonDocument> items_;
};

/// What a first try of the op did, from its kept result.
void Replay(const BulkOp& op, size_t index, const StatementResult& before, BulkReply* out) {
  switch (op.kind) {
    case BulkOp::Kind::kInsert:
      return out->Inserted(index);
    case BulkOp::Kind::kDelete:
      return out->Deleted(index, 1);
    case BulkOp::Kind::kUpdate:
      if (before.kind == StatementResult::Kind::kUpserted)
        return out->Updated(index, 0, 0, before.document.view()["_id"]);
      return out->Updated(index, 1, 1, BsonValue());
  }
}

/// Runs the ops in order; returns early with an error that concerns the whole command. Blocking.
Result<void> RunOps(CommandContext& ctx, std::vector<BulkOp>& ops,
                    std::vector<BulkNamespace>& namespaces, bool ordered, RetryableWrite& retry,
                    BulkReply* out) {
  std::vector<BsonView> documents;
  for (size_t i = 0; i < ops.size();) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    BulkOp& op = ops[i];
    WriteCommand& command = *namespaces[op.ns].command;
    if (retry.active()) {
      if (const StatementResult* before = retry.Find(i)) {
        Replay(op, i++, *before, out);
        continue;
      }
    }
    retry.SetStatement(i);
    bool failed = false;
    auto fail = [&](size_t index, const Error& e) {
      out->Failed(index, op.kind, e);
      failed = true;
    };
    if (op.kind == BulkOp::Kind::kInsert) {
      // Neighbours on one namespace share write units.
      size_t end = i + 1;
      documents.assign(1, op.document);
      while (end < ops.size() && ops[end].kind == BulkOp::Kind::kInsert && ops[end].ns == op.ns &&
             SameExpiry(ops[end].expiry, op.expiry) &&
             !(retry.active() && retry.Find(end) != nullptr))
        documents.push_back(ops[end++].document);
      command.set_expiry(op.expiry);
      if (Result<void> open = command.OpenOrCreate(); !open) {
        if (EndsCommand(open.error())) return open.error();
        for (; i < end && !(failed && ordered); ++i) fail(i, open.error());
      } else {
        // Failures come in order, each before the documents behind it.
        size_t next = i;
        auto stored = [&](size_t until) {
          while (next < until) out->Inserted(next++);
        };
        MAYFLY_TRY(command.Insert(documents, [&](size_t index, Error e) {
          stored(i + index);
          fail(next++, e);
          return !ordered;
        }));
        if (!(failed && ordered)) stored(end);
      }
      i = end;
    } else {
      Result<void> open = command.Open();
      if (!open) {
        if (EndsCommand(open.error())) return open.error();
        fail(i, open.error());
      } else if (op.kind == BulkOp::Kind::kUpdate) {
        Result<UpdateResult> r = retry.active() && op.update.multi ? NotRetryable("multi=true")
                                                                   : command.Update(op.update);
        if (r) {
          out->Updated(i, r.value().matched, r.value().modified, r.value().upserted_id.view());
        } else {
          if (EndsCommand(r.error())) return r.error();
          fail(i, r.error());
        }
      } else {
        Result<int64_t> r =
            retry.active() && op.remove.multi ? NotRetryable("limit=0") : command.Delete(op.remove);
        if (r) {
          out->Deleted(i, r.value());
        } else {
          if (EndsCommand(r.error())) return r.error();
          fail(i, r.error());
        }
      }
      ++i;
    }
    if (failed && ordered) break;
  }
  return Ok();
}

Awaitable<Result<void>> RunBulkWrite(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("bulkWrite");
  const std::vector<BsonView> op_documents = in.Documents("ops");
  const std::vector<BsonView> ns_documents = in.Documents("nsInfo");
  const bool ordered = in.BoolOr("ordered", true);
  const bool errors_only = in.BoolOr("errorsOnly", false);
  const bool bypass = in.LooseBoolOr("bypassDocumentValidation", false);
  in.OptBool("bypassEmptyTsReplacement");
  const BsonView let = in.DocumentOr("let");
  const std::optional<BsonView> cursor = in.OptDocument("cursor");
  const std::optional<BsonView> statement_ids = in.OptArray("stmtIds");
  const std::optional<int64_t> statement_id = in.OptInt64("stmtId");
  MAYFLY_CO_TRY(in.Finish());
  int64_t batch_size = std::numeric_limits<int64_t>::max();
  if (cursor) {
    ArgReader c("bulkWrite.cursor", *cursor);
    if (c.Has("batchSize")) batch_size = c.NonNegativeOr("batchSize", 0);
    MAYFLY_CO_TRY(c.Finish());
  }
  if (op_documents.empty() || op_documents.size() > kMaxOps)
    co_return Error{ErrorCode::kInvalidLength,
                    "Write batch sizes must be between 1 and 100000. Got " +
                        std::to_string(op_documents.size()) + " operations."};
  co_await ctx.MoveToWorker();
  std::vector<BulkNamespace> namespaces;
  for (BsonView doc : ns_documents) {
    MAYFLY_CO_TRY(BulkNamespace n, ParseNamespace(doc));
    n.command = std::make_unique<WriteCommand>(ctx.server, ctx.op, n.db, n.collection);
    n.command->set_bypass_validation(bypass);
    MAYFLY_CO_TRY(n.command->SetLet(let));
    namespaces.push_back(std::move(n));
  }
  std::vector<BulkOp> ops;
  ops.reserve(op_documents.size());
  int64_t inserts = 0, updates = 0, deletes = 0;
  for (BsonView doc : op_documents) {
    MAYFLY_CO_TRY(BulkOp op, ParseOp(doc, namespaces.size(), ctx.op.now));
    inserts += op.kind == BulkOp::Kind::kInsert;
    updates += op.kind == BulkOp::Kind::kUpdate;
    deletes += op.kind == BulkOp::Kind::kDelete;
    ops.push_back(std::move(op));
  }
  ctx.EditReport([&](OperationReport& r) { r.ns = kNamespace; });
  auto& counters = ctx.server.metrics().opcounters;
  counters.insert.Add(inserts);
  counters.update.Add(updates);
  counters.remove.Add(deletes);

  RetryableWrite retry(ctx);
  if (ctx.txn_number) {
    MAYFLY_CO_TRY(retry.SetStatementIds(statement_ids, statement_id, ops.size()));
    MAYFLY_CO_TRY(co_await retry.Begin());
    for (BulkNamespace& n : namespaces) n.command->set_observer(&retry);
  }
  co_await ctx.MoveToWorker();
  BulkReply out(errors_only);
  MAYFLY_CO_TRY(RunOps(ctx, ops, namespaces, ordered, retry, &out));
  if (ctx.write_concern.journal) {
    MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.server.storage(), ctx.op)));
  }
  const BulkCounts& c = out.counts;
  auto& documents = ctx.server.metrics().documents;
  documents.inserted.Add(c.inserted + c.upserted);
  documents.updated.Add(c.modified);
  documents.deleted.Add(c.deleted);

  auto client = MakeClientCursor(ctx, req, kNamespace);
  client->cursor = std::make_unique<ListCursor>(out.TakeItems());
  MAYFLY_CO_TRY(
      ReplyFirstBatch(ctx.server.cursors(), ctx.op, std::move(client), batch_size, reply));
  reply.Append("nErrors", static_cast<int32_t>(c.errors))
      .Append("nInserted", static_cast<int32_t>(c.inserted))
      .Append("nMatched", static_cast<int32_t>(c.matched))
      .Append("nModified", static_cast<int32_t>(c.modified))
      .Append("nUpserted", static_cast<int32_t>(c.upserted))
      .Append("nDeleted", static_cast<int32_t>(c.deleted));
  int64_t clamped = 0;
  for (const BulkNamespace& n : namespaces) clamped += n.command->expiry_clamped();
  if (clamped > 0) reply.Append("expiryClamped", static_cast<int32_t>(clamped));
  retry.AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterBulkWrite(CommandRegistry& registry) {
  registry.Add({.name = "bulkWrite",
                .flags = kWrites | kAdminOnly | kApiV1 | kTakesWriteConcern | kCountsItself |
                         kRetryableWrite,
                .help = "Inserts, updates and deletes on several collections in one command.",
                .run_async = &RunBulkWrite});
}

}  // namespace mayfly
