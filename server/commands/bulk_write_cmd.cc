#include <limits>

#include "protocol/error_text.h"
#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/execution/raw_data.h"
#include "server/execution/statement_runner.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

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

Result<void> CheckBulkHint(BsonValue hint) {
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
    in.BoolOr("upsertSupplied", false);  // unused: a router's note that 'c.new' is there
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
    MAYFLY_TRY(CheckBulkHint(u.hint));
  } else {
    op.kind = BulkOp::Kind::kDelete;
    op.remove.filter = in.Document("filter");
    op.remove.multi = in.BoolOr("multi", false);
    op.remove.hint = in.Any("hint");
    op.remove.tombstone = in.BoolOr("tombstone", true);
    in.SimpleCollation();
    MAYFLY_TRY(CheckBulkHint(op.remove.hint));
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
  std::optional<Uuid> uuid;               ///< of the only collection that is meant
  std::unique_ptr<WriteCommand> command;  ///< null: no op names it
};

/// A namespace's command writes to the collection, or with `rawData` to the buckets of the time
/// series that it is.
std::string_view TargetOf(CommandContext& ctx, const BulkNamespace& n, bool raw_data,
                          std::string& scratch) {
  if (!raw_data) return n.collection;
  std::optional<std::string> buckets =
      NameOfBuckets(ctx.data.storage().catalog(), n.db, n.collection);
  if (!buckets) return n.collection;
  scratch = std::move(*buckets);
  return scratch;
}

Result<BulkNamespace> ParseNamespace(BsonView doc) {
  ArgReader in("bulkWrite.nsInfo", doc);
  const std::string_view ns = in.String("ns");
  const BsonValue uuid = in.Any("collectionUUID");
  in.NotSupported("encryptionInformation");
  MAYFLY_TRY(in.Finish());
  const NamespaceParts parts = SplitNamespace(ns);
  if (!parts.whole())
    return Error{ErrorCode::kInvalidNamespace,
                 "Invalid namespace specified for bulkWrite: '" + std::string(ns) + "'"};
  BulkNamespace n;
  n.uuid = UuidOf(uuid);
  if (!n.uuid && !uuid.missing())
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field 'bulkWrite.nsInfo.collectionUUID' must be a UUID"};
  n.db = parts.db;
  n.collection = parts.collection;
  MAYFLY_TRY(ValidateNamespace(n.db, n.collection));
  return n;
}

/// The replies of the ops, in order, and what they add up to. They are charged as large memory
/// while this lives. Errors of all: ExceededMemoryLimit 146.
class BulkReply {
 public:
  explicit BulkReply(bool errors_only) : errors_only_(errors_only) {}

  Result<void> Inserted(size_t index) {
    ++counts.inserted;
    if (errors_only_) return Ok();
    return Add(index, true, [](BsonBuilder& b) { b.Append("n", int32_t{1}); });
  }
  Result<void> Updated(size_t index, int64_t matched, int64_t modified, BsonValue upserted) {
    counts.matched += matched;
    counts.modified += modified;
    if (!upserted.missing()) ++counts.upserted;
    if (errors_only_) return Ok();
    return Add(index, true, [&](BsonBuilder& b) {
      const int64_t n = matched + (upserted.missing() ? 0 : 1);
      b.Append("n", static_cast<int32_t>(n)).Append("nModified", static_cast<int32_t>(modified));
      if (!upserted.missing()) b.OpenDocument("upserted").Append("_id", upserted);
    });
  }
  Result<void> Deleted(size_t index, int64_t n) {
    counts.deleted += n;
    if (errors_only_) return Ok();
    return Add(index, true, [&](BsonBuilder& b) { b.Append("n", static_cast<int32_t>(n)); });
  }
  Result<void> Failed(size_t index, BulkOp::Kind kind, Error e) {
    ++counts.errors;
    room_.Fit(e);
    return Add(index, false, [&](BsonBuilder& b) {
      b.Append("code", static_cast<int32_t>(e.code)).Append("errmsg", ErrorText(e.message));
      if (!e.details.empty()) b.AppendAll(BsonView(e.details.data()));
      b.Append("n", int32_t{0});
      if (kind == BulkOp::Kind::kUpdate) b.Append("nModified", int32_t{0});
    });
  }
  std::vector<BsonDocument> TakeItems() { return std::move(items_); }

  BulkCounts counts;

 private:
  template <class F>
  Result<void> Add(size_t index, bool ok, F&& fill) {
    BsonDocument item = BuildBson([&](BsonBuilder& b) {
      b.Append("ok", ok ? 1.0 : 0.0).Append("idx", static_cast<int32_t>(index));
      fill(b);
    });
    // A builder's buffer has up to twice the room, for each of many replies.
    item.bytes().shrink_to_fit();
    bytes_ += item.bytes().capacity();
    items_.push_back(std::move(item));
    return hold_.Set(bytes_ + items_.capacity() * sizeof items_[0]);
  }
  const bool errors_only_;
  std::vector<BsonDocument> items_;
  ErrorRoom room_;
  size_t bytes_ = 0;
  large_memory::Hold hold_;  ///< of items_
};

class BulkStatements final : public WriteStatements {
 public:
  BulkStatements(const std::vector<BulkOp>& ops, const std::vector<BulkNamespace>& namespaces,
                 bool ordered, BulkReply* out)
      : ops_(ops), namespaces_(namespaces), ordered_(ordered), out_(*out) {}

  size_t size() const override { return ops_.size(); }
  bool NeedsWorker() const override { return true; }
  Result<void> Open(StatementRunner& runner) override {
    for (const BulkNamespace& n : namespaces_)
      if (n.command) runner.Attach(*n.command);
    return Ok();
  }
  /// Neighbours on one namespace share write units.
  size_t Until(size_t i) const override {
    const BulkOp& op = ops_[i];
    size_t end = i + 1;
    if (op.kind != BulkOp::Kind::kInsert) return end;
    while (end < ops_.size() && ops_[end].kind == BulkOp::Kind::kInsert && ops_[end].ns == op.ns &&
           SameExpiry(ops_[end].expiry, op.expiry))
      ++end;
    return end;
  }
  WriteStatement At(size_t i, size_t end) override {
    const BulkOp& op = ops_[i];
    WriteStatement s{.command = namespaces_[op.ns].command.get(), .open = true};
    if (op.kind == BulkOp::Kind::kUpdate) s.update = &op.update;
    if (op.kind == BulkOp::Kind::kDelete) s.remove = &op.remove;
    if (op.kind == BulkOp::Kind::kInsert) {
      documents_.clear();
      for (size_t n = i; n < end; ++n) documents_.push_back(ops_[n].document);
      s.documents = documents_;
      s.command->set_expiry(op.expiry);
    }
    return s;
  }

  /// What a first try of the op did, from its kept result.
  Result<void> Replayed(size_t i, const StatementResult& before) override {
    const BulkOp::Kind kind = ops_[i].kind;
    if (kind == BulkOp::Kind::kInsert) return out_.Inserted(i);
    if (kind == BulkOp::Kind::kDelete) return out_.Deleted(i, 1);
    if (before.kind == StatementResult::Kind::kUpserted)
      return out_.Updated(i, 0, 0, before.document.view()["_id"]);
    return out_.Updated(i, 1, 1, BsonValue());
  }
  Result<void> Inserted(size_t i, size_t count) override {
    for (; count > 0; --count) {
      MAYFLY_TRY(out_.Inserted(i++));
    }
    return Ok();
  }
  Result<void> Done(size_t i, StatementOutcome o) override {
    if (ops_[i].kind == BulkOp::Kind::kDelete) return out_.Deleted(i, o.deleted);
    return out_.Updated(i, o.update.matched, o.update.modified, o.update.upserted_id.view());
  }
  Result<bool> Failed(size_t i, Error e) override {
    MAYFLY_TRY(out_.Failed(i, ops_[i].kind, std::move(e)));
    return !ordered_;
  }

 private:
  const std::vector<BulkOp>& ops_;
  const std::vector<BulkNamespace>& namespaces_;
  const bool ordered_;
  BulkReply& out_;
  std::vector<BsonView> documents_;  // of the insert that runs
};

/// The command's own fields. Views point into the request.
struct BulkArgs {
  DocumentList ops, namespaces;
  bool ordered = true, errors_only = false, bypass = false, keep_empty_timestamps = false,
       raw_data = false;
  BsonView let;
  StatementIds statement_ids;
  int64_t batch_size = std::numeric_limits<int64_t>::max();
};

Result<BulkArgs> ReadBulkArgs(const CommandRequest& req) {
  ArgReader in(req);
  BulkArgs a;
  in.Any("bulkWrite");  // unused: the command's name
  a.ops = in.Documents("ops");
  a.namespaces = in.Documents("nsInfo");
  a.ordered = in.BoolOr("ordered", true);
  a.errors_only = in.BoolOr("errorsOnly", false);
  a.bypass = in.LooseBoolOr("bypassDocumentValidation", false);
  a.keep_empty_timestamps = in.BoolOr("bypassEmptyTsReplacement", false);
  a.let = in.DocumentOr("let");
  a.raw_data = req.generic.raw_data;
  const std::optional<BsonView> cursor = in.OptDocument("cursor");
  a.statement_ids.ids = in.OptArray("stmtIds");
  a.statement_ids.first = in.OptInt64("stmtId");
  MAYFLY_TRY(in.Finish());
  if (cursor) {
    ArgReader c("bulkWrite.cursor", *cursor);
    if (c.Has("batchSize")) a.batch_size = c.NonNegativeOr("batchSize", 0);
    MAYFLY_TRY(c.Finish());
  }
  if (a.ops.empty() || a.ops.size() > kMaxOps)
    return Error{ErrorCode::kInvalidLength, "Write batch sizes must be between 1 and 100000. Got " +
                                                std::to_string(a.ops.size()) + " operations."};
  // Each op names one.
  if (a.namespaces.size() > kMaxOps)
    return Error{ErrorCode::kInvalidLength,
                 "BSON field 'bulkWrite.nsInfo' has " + std::to_string(a.namespaces.size()) +
                     " namespaces, and may have 100000: name only those that 'ops' needs"};
  return a;
}

/// What the command is read into: many times the bytes on the wire, so it is charged.
struct BulkParsed {
  std::vector<BulkNamespace> namespaces;
  std::vector<BulkOp> ops;
  int64_t inserts = 0, updates = 0, deletes = 0;

  /// `bytes` more are about to be used. Errors: ExceededMemoryLimit 146.
  Result<void> Charge(size_t bytes) {
    bytes_ += bytes;
    return hold_.Set(bytes_);
  }

 private:
  size_t bytes_ = 0;
  large_memory::Hold hold_;
};

/// On a worker. Errors: 146, those of an interrupt, and those of the parts.
Result<void> ParseBulk(CommandContext& ctx, const BulkArgs& a, BulkParsed* parsed) {
  ParseWork work(&ctx.op);
  MAYFLY_TRY(
      parsed->Charge(a.namespaces.size() * sizeof(BulkNamespace) + a.ops.size() * sizeof(BulkOp)));
  parsed->namespaces.reserve(a.namespaces.size());
  for (BsonView doc : a.namespaces) {
    MAYFLY_TRY(ParseWork::Step());
    MAYFLY_TRY(BulkNamespace n, ParseNamespace(doc));
    parsed->namespaces.push_back(std::move(n));
  }
  parsed->ops.reserve(a.ops.size());
  for (BsonView doc : a.ops) {
    MAYFLY_TRY(ParseWork::Step());
    MAYFLY_TRY(BulkOp op, ParseOp(doc, parsed->namespaces.size(), ctx.op.now));
    if (!op.update.array_filters.empty()) {
      MAYFLY_TRY(parsed->Charge(op.update.array_filters.capacity() * sizeof(BsonView)));
    }
    parsed->inserts += op.kind == BulkOp::Kind::kInsert;
    parsed->updates += op.kind == BulkOp::Kind::kUpdate;
    parsed->deletes += op.kind == BulkOp::Kind::kDelete;
    parsed->ops.push_back(std::move(op));
  }
  for (const BulkOp& op : parsed->ops) {
    BulkNamespace& n = parsed->namespaces[op.ns];
    if (n.command) continue;
    MAYFLY_TRY(ParseWork::Step(8));
    // Each has the variables of `let`.
    MAYFLY_TRY(parsed->Charge(sizeof(WriteCommand) + n.db.size() + n.collection.size() +
                              2 * static_cast<size_t>(a.let.size())));
    std::string buckets;
    n.command = std::make_unique<WriteCommand>(WriteServicesOf(ctx.data), ctx.op, n.db,
                                               TargetOf(ctx, n, a.raw_data, buckets));
    n.command->set_bypass_validation(a.bypass);
    n.command->set_keep_empty_timestamps(a.keep_empty_timestamps);
    if (n.uuid) n.command->set_collection_uuid(*n.uuid);
    MAYFLY_TRY(n.command->SetLet(a.let));
  }
  return Ok();
}

/// The command with what decides whether it is allowed, for the getMores of its cursor: the
/// namespaces, and of each one op of every kind, without documents. Document sequences are no part
/// of the body.
BsonDocument WhatIsAllowed(const CommandRequest& req, const BulkParsed& parsed) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : req.body)
      if (e.name != "ops" && e.name != "nsInfo") b.Append(e);
    {
      BsonArrayBuilder list = b.OpenArray("nsInfo");
      for (const BulkNamespace& n : parsed.namespaces)
        list.OpenDocument().Append("ns", JoinNamespace(n.db, n.collection));
    }
    enum : uint8_t { kInserts = 1, kDeletes = 2, kUpdates = 4, kUpserts = 8 };
    std::vector<uint8_t> seen(parsed.namespaces.size());  // bounded: by the namespaces, charged
    BsonArrayBuilder list = b.OpenArray("ops");
    for (const BulkOp& op : parsed.ops) {
      const bool update = op.kind == BulkOp::Kind::kUpdate;
      const bool upsert = update && op.update.upsert;
      const uint8_t what = op.kind == BulkOp::Kind::kInsert   ? kInserts
                           : op.kind == BulkOp::Kind::kDelete ? kDeletes
                           : upsert                           ? kUpserts
                                                              : kUpdates;
      if (seen[op.ns] & what) continue;
      seen[op.ns] |= what;
      BsonBuilder one = list.OpenDocument();
      one.Append(what == kInserts   ? "insert"
                 : what == kDeletes ? "delete"
                                    : "update",
                 static_cast<int32_t>(op.ns));
      if (upsert) one.Append("upsert", true);
    }
  });
}

Awaitable<Result<void>> RunBulkWrite(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  MAYFLY_CO_TRY(RefuseDeadlineField(ctx, "bulkWrite"));
  MAYFLY_CO_TRY(const BulkArgs args, ReadBulkArgs(req));
  co_await ctx.MoveToWorker();
  BulkParsed parsed;
  MAYFLY_CO_TRY(ParseBulk(ctx, args, &parsed));
  ctx.EditReport([&](OperationReport& r) { r.ns = kNamespace; });
  auto& counters = ctx.data.metrics().opcounters;
  counters.insert.Add(parsed.inserts);
  counters.update.Add(parsed.updates);
  counters.remove.Add(parsed.deletes);

  BulkReply out(args.errors_only);
  BulkStatements statements(parsed.ops, parsed.namespaces, args.ordered, &out);
  StatementRunner runner(ctx);
  MAYFLY_CO_TRY(co_await runner.RunStatements(statements, args.statement_ids));
  const BulkCounts& c = out.counts;
  auto& documents = ctx.data.metrics().documents;
  documents.inserted.Add(c.inserted + c.upserted);
  documents.updated.Add(c.modified);
  documents.deleted.Add(c.deleted);

  MAYFLY_CO_TRY(ReplyFirstBatch(
      ctx.data.cursors(), ctx.op, std::make_unique<ListCursor>(out.TakeItems()), kNamespace,
      args.batch_size, false,
      [&] {
        auto client = MakeClientCursor(ctx, req, kNamespace);
        if (ctx.access != nullptr) client->whole_command = WhatIsAllowed(req, parsed);
        return client;
      },
      reply));
  reply.Append("nErrors", static_cast<int32_t>(c.errors))
      .Append("nInserted", static_cast<int32_t>(c.inserted))
      .Append("nMatched", static_cast<int32_t>(c.matched))
      .Append("nModified", static_cast<int32_t>(c.modified))
      .Append("nUpserted", static_cast<int32_t>(c.upserted))
      .Append("nDeleted", static_cast<int32_t>(c.deleted));
  int64_t clamped = 0;
  for (const BulkNamespace& n : parsed.namespaces)
    if (n.command) clamped += n.command->expiry_clamped();
  if (clamped > 0) reply.Append("expiryClamped", static_cast<int32_t>(clamped));
  runner.retry().AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterBulkWrite(CommandRegistry& registry) {
  registry.Add({.name = "bulkWrite",
                .flags = kWrites | kAdminOnly | kApiV1 | kTakesWriteConcern | kCountsItself |
                         kRetryableWrite,
                .help = "Inserts, updates and deletes on several collections in one command.",
                .run_async = &RunBulkWrite,
                .privileges = &privileges::BulkWrite});
}

}  // namespace mayfly
