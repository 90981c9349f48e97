#include "server/aggregate.h"
#include "server/arg_reader.h"
#include "server/cursor_manager.h"
#include "server/find_args.h"
#include "server/server_context.h"
#include "storage/namespace.h"

namespace mayfly {
namespace {

/// A find's executor between batches.
class FindCursor final : public ServerCursor {
 public:
  FindCursor(std::unique_ptr<PlanExecutor> executor, CollectionInfoPtr coll, bool await)
      : executor_(std::move(executor)), coll_(std::move(coll)), await_(await) {}
  Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) override {
    if (parked_) {
      MAYFLY_TRY(executor_->RestoreState(op));
      parked_ = false;
    }
    if (batch_size == 0) return Ok();
    MAYFLY_TRY(bool end,
               executor_->FillBatch(batch, batch_size == INT64_MAX ? 0 : batch_size, max_bytes));
    exhausted_ = end;
    return Ok();
  }
  bool Exhausted() const override {
    return exhausted_ || (!executor_->tailable() && executor_->IsEof());
  }
  void Park() override {
    if (parked_) return;
    executor_->SaveState();
    parked_ = true;
  }
  bool tailable() const override { return executor_->tailable(); }
  bool await_data() const override { return await_; }
  uint32_t collection_id() const override { return coll_ ? coll_->id : 0; }

 private:
  std::unique_ptr<PlanExecutor> executor_;
  CollectionInfoPtr coll_;
  const bool await_;
  bool parked_ = false, exhausted_ = false;
};

Awaitable<Result<void>> RunFind(CommandContext& ctx, const CommandRequest& req,
                                BsonBuilder& reply) {
  MAYFLY_CO_TRY(FindArgs a, ParseFind(req));
  MAYFLY_CO_TRY(ValidateNamespace(req.db, a.collection));
  ctx.server.metrics().opcounters.query.Add();
  Storage& storage = ctx.server.storage();
  CollectionInfoPtr coll = storage.catalog().Find(req.db, a.collection);
  std::string ns;
  ns.reserve(req.db.size() + 1 + a.collection.size());
  ns.append(req.db).append(".").append(a.collection);
  QuerySpec spec = a.ToSpec(coll, ns);
  spec.memory_limit = static_cast<uint64_t>(
      ctx.server.settings().internal_query_max_blocking_sort_bytes.load(std::memory_order_relaxed));
  BsonValue id;
  if (coll && !coll->is_view && IsPointRead(spec, &id)) {
    // The shortest way there is: one look-up, on the io thread, straight into the reply.
    int found = 0;
    {
      BsonBuilder cursor = reply.OpenDocument("cursor");
      BsonArrayBuilder batch = cursor.OpenArray("firstBatch");
      if (!a.batch_size || *a.batch_size > 0) {
        MAYFLY_CO_TRY(found, RunPointRead(storage, ctx.op, spec, id, batch));
      }
      batch.Done();
      cursor.Append("id", int64_t{0}).Append("ns", ns);
    }
    ctx.op.n_returned = found;
    ctx.server.metrics().documents.returned.Add(found);
    ctx.EditReport([&](OperationReport& r) {
      r.op = "query";
      r.ns = std::move(ns);
      r.plan_summary = "IDHACK";
      r.reply_documents = found;
      r.cursor_exhausted = true;
    });
    co_return Ok();
  }
  ctx.EditReport([&](OperationReport& r) {
    r.op = "query";
    r.ns = ns;
  });
  co_await ctx.MoveToWorker();
  auto client = std::make_unique<ClientCursor>();
  client->ns = ns;
  client->db = req.db;
  client->collection = a.collection;
  client->no_timeout = a.no_cursor_timeout;
  client->single_batch = a.single_batch;
  client->max_time_ms = req.generic.max_time_ms;
  client->originating_command = BsonDocument(req.body);
  if (ctx.session) client->session = ctx.session->id();
  if (coll && coll->is_view) {
    MAYFLY_CO_TRY(BsonDocument pipeline, a.ToPipeline());
    AggregateSpec view;
    view.db = req.db;
    view.collection = a.collection;
    view.pipeline = pipeline;
    view.let = a.let;
    view.include_expired = a.include_expired;
    MAYFLY_CO_TRY(client->cursor, OpenPipeline(ctx.server, ctx.op, view, &client->plan_summary));
  } else {
    MAYFLY_CO_TRY(std::unique_ptr<PlanExecutor> executor, MakeFindExecutor(storage, ctx.op, spec));
    client->plan_summary = executor->PlanSummary();
    client->cursor = std::make_unique<FindCursor>(std::move(executor), coll, a.await_data);
  }
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = client->plan_summary; });
  int64_t batch =
      a.batch_size.value_or(a.single_batch || a.limit > 0 ? INT64_MAX : kDefaultFirstBatch);
  if (a.single_batch && a.batch_size && a.limit > 0 && *a.batch_size > a.limit) batch = a.limit;
  MAYFLY_CO_TRY(ReplyFirstBatch(ctx.server.cursors(), ctx.op, std::move(client), batch, reply));
  ctx.server.metrics().documents.returned.Add(ctx.op.n_returned);
  co_return Ok();
}

Awaitable<Result<void>> RunGetMore(CommandContext& ctx, const CommandRequest& req,
                                   BsonBuilder& reply) {
  ArgReader in(req);
  BsonValue id_value = in.Any("getMore");
  std::string_view collection = in.String("collection");
  int64_t batch_size = in.NonNegativeOr("batchSize", 0);
  int64_t await_ms = req.generic.max_time_ms;
  in.Ignore("term");
  in.Ignore("lastKnownCommittedOpTime");
  MAYFLY_CO_TRY(in.Finish());
  if (!id_value.Is(BsonType::kInt64))
    co_return Error{ErrorCode::kTypeMismatch, "BSON field 'getMore.getMore' is the wrong type '" +
                                                  std::string(BsonTypeName(id_value.type())) +
                                                  "', expected type 'long'"};
  if (in.Has("batchSize") && batch_size <= 0)
    co_return Error{
        ErrorCode::kBadValue,
        "Batch size for getMore must be positive, but received: " + std::to_string(batch_size)};
  if (collection.empty())
    co_return Error{ErrorCode::kInvalidNamespace, "Collection names cannot be empty"};
  ctx.server.metrics().opcounters.getmore.Add();
  ctx.EditReport([&](OperationReport& r) {
    r.op = "getmore";
    r.ns = std::string(req.db) + "." + std::string(collection);
    r.cursor_id = id_value.Int64();
  });
  CursorManager& cursors = ctx.server.cursors();
  std::string session = ctx.session ? std::string(ctx.session->id()) : std::string();
  MAYFLY_CO_TRY(std::unique_ptr<ClientCursor> client,
                cursors.CheckOut(id_value.Int64(), req.db, collection, session, ctx.op));
  if (ctx.server.fail_points().any()) [[unlikely]] {
    if (auto fired = ctx.server.fail_points().Fire("failGetMoreAfterCursorCheckout")) {
      cursors.CheckIn(std::move(client));
      const BsonView data = fired->view();
      ctx.close_connection = data["closeConnection"].Truthy();
      co_return Error{static_cast<ErrorCode>(data["errorCode"].NumberAsInt64()),
                      "Failing getMore via 'failGetMoreAfterCursorCheckout' failpoint"};
    }
  }
  const bool tailable = client->cursor->tailable();
  const bool await = tailable && client->cursor->await_data();
  if (await_ms > 0 && !await) {
    cursors.CheckIn(std::move(client));
    co_return Error{ErrorCode::kBadValue,
                    "cannot set maxTimeMS on getMore command for a non-awaitData cursor"};
  }
  ctx.EditReport([&](OperationReport& r) {
    r.plan_summary = client->plan_summary;
    r.originating_command = client->originating_command;
  });
  // The time a find was given is for all its batches; a tailable cursor's getMore brings its own,
  // which is how long it waits.
  const int64_t deadline =
      ctx.server.clock().MonotonicMicros() + (await_ms > 0 ? await_ms : 1000) * 1000;
  if (await) ctx.op.deadline_micros = 0;
  std::string bytes;
  int count = 0;
  Result<void> result = Ok();
  for (bool again = true; again;) {
    again = false;
    std::optional<CollectionNotifier::Watch> watch;
    if (await) watch.emplace(ctx.server.notifier(), client->cursor->collection_id());
    co_await ctx.MoveToWorker();
    bytes.clear();
    {
      BsonArrayBuilder batch(bytes);
      result = client->cursor->NextBatch(ctx.op, batch_size == 0 ? INT64_MAX : batch_size,
                                         kMaxBatchBytes, batch);
      count = batch.count();
    }
    if (!result) break;
    if (await && count == 0 && !client->cursor->Exhausted() &&
        ctx.server.clock().MonotonicMicros() < deadline) {
      client->cursor->Park();
      co_await ctx.MoveToIo();
      Result<bool> woken = co_await watch->WaitFor(ctx, deadline);
      if (!woken) {
        result = woken.error();
        break;
      }
      again = woken.value();
    }
  }
  if (!result) {
    cursors.Discard(std::move(client));
    co_return result;
  }
  ctx.op.n_returned = count;
  ctx.server.metrics().documents.returned.Add(count);
  const int64_t id = client->id;
  const std::string ns = client->ns;
  ++client->batches;
  client->documents_returned += count;
  client->cursor->Park();
  const bool alive = cursors.CheckIn(std::move(client));
  BsonBuilder cursor = reply.OpenDocument("cursor");
  cursor.AppendArray("nextBatch", BsonView(bytes));
  cursor.Append("id", alive ? id : int64_t{0}).Append("ns", ns);
  cursor.Done();
  ctx.EditReport([&](OperationReport& r) {
    r.reply_documents = count;
    r.cursor_exhausted = !alive;
  });
  // An exhaust stream goes on until the cursor has ended.
  ctx.more_to_come = req.exhaust_allowed && alive;
  co_return Ok();
}

Result<void> RunKillCursors(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection = in.Collection();
  BsonView ids = in.Array("cursors");
  MAYFLY_TRY(in.Finish());
  for (const BsonElement& e : ids)
    if (!e.value.Is(BsonType::kInt64))
      return Error{ErrorCode::kTypeMismatch, "BSON field 'killCursors.cursors." +
                                                 std::string(e.name) + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'long'"};
  std::vector<int64_t> killed, missing;
  for (const BsonElement& e : ids)
    (ctx.server.cursors().Kill(e.value.Int64(), req.db, collection) ==
             CursorManager::KillResult::kKilled
         ? killed
         : missing)
        .push_back(e.value.Int64());
  auto list = [&](std::string_view name, const std::vector<int64_t>& v) {
    BsonArrayBuilder a = reply.OpenArray(name);
    for (int64_t id : v) a.Append(id);
  };
  list("cursorsKilled", killed);
  list("cursorsNotFound", missing);
  list("cursorsAlive", {});
  list("cursorsUnknown", {});
  return Ok();
}

Result<void> RunCount(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(CountArgs a, ParseCount(req));
  MAYFLY_TRY(ValidateNamespace(req.db, a.collection));
  CollectionInfoPtr coll = ctx.server.storage().catalog().Find(req.db, a.collection);
  ctx.EditReport(
      [&](OperationReport& r) { r.ns = std::string(req.db) + "." + std::string(a.collection); });
  int64_t n = 0;
  if (coll && coll->is_view) {
    std::string bytes;
    BsonArrayBuilder stages(bytes);
    if (!a.query.empty()) stages.OpenDocument().Append("$match", a.query);
    if (a.skip > 0) stages.OpenDocument().Append("$skip", a.skip);
    if (a.limit > 0) stages.OpenDocument().Append("$limit", a.limit);
    stages.OpenDocument().Append("$count", "n");
    stages.Done();
    AggregateSpec spec;
    spec.db = req.db;
    spec.collection = a.collection;
    spec.pipeline = BsonView(bytes);
    MAYFLY_TRY(std::unique_ptr<ServerCursor> cursor,
               OpenPipeline(ctx.server, ctx.op, spec, nullptr));
    std::string out;
    {
      BsonArrayBuilder batch(out);
      MAYFLY_TRY(cursor->NextBatch(ctx.op, 1, kMaxBatchBytes, batch));
    }
    n = BsonView(out).FindPath("0.n").NumberAsInt64();
  } else {
    QuerySpec spec;
    std::string ns = std::string(req.db) + "." + std::string(a.collection);
    spec.coll = coll;
    spec.ns = ns;
    spec.filter = a.query;
    spec.hint = a.hint;
    spec.skip = a.skip;
    spec.limit = a.limit;
    MAYFLY_TRY(std::unique_ptr<CountExecutor> count,
               MakeCountExecutor(ctx.server.storage(), ctx.op, spec));
    ctx.EditReport([&](OperationReport& r) { r.plan_summary = count->PlanSummary(); });
    MAYFLY_TRY(n, count->Count());
  }
  if (n > INT32_MAX)
    reply.Append("n", n);
  else
    reply.Append("n", static_cast<int32_t>(n));
  return Ok();
}

Result<void> RunDistinct(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(DistinctArgs a, ParseDistinct(req));
  MAYFLY_TRY(ValidateNamespace(req.db, a.collection));
  CollectionInfoPtr coll = ctx.server.storage().catalog().Find(req.db, a.collection);
  ctx.EditReport(
      [&](OperationReport& r) { r.ns = std::string(req.db) + "." + std::string(a.collection); });
  if (coll && coll->is_view) {
    // Arrays at the end of the path stand for their elements, as the command has it.
    std::string path = "$" + std::string(a.key);
    std::string bytes;
    BsonArrayBuilder stages(bytes);
    if (!a.query.empty()) stages.OpenDocument().Append("$match", a.query);
    {
      auto s = stages.OpenDocument();
      auto u = s.OpenDocument("$unwind");
      u.Append("path", path).Append("preserveNullAndEmptyArrays", true);
    }
    {
      auto s = stages.OpenDocument();
      auto g = s.OpenDocument("$group");
      g.AppendNull("_id");
      auto d = g.OpenDocument("values");
      d.Append("$addToSet", path);
    }
    stages.Done();
    AggregateSpec spec;
    spec.db = req.db;
    spec.collection = a.collection;
    spec.pipeline = BsonView(bytes);
    MAYFLY_TRY(std::unique_ptr<ServerCursor> cursor,
               OpenPipeline(ctx.server, ctx.op, spec, nullptr));
    std::string out;
    {
      BsonArrayBuilder batch(out);
      MAYFLY_TRY(cursor->NextBatch(ctx.op, 1, kMaxBatchBytes, batch));
    }
    BsonValue values = BsonView(out).FindPath("0.values");
    if (values.IsArray())
      reply.Append("values", values);
    else
      reply.OpenArray("values").Done();
    return Ok();
  }
  QuerySpec spec;
  std::string ns = std::string(req.db) + "." + std::string(a.collection);
  spec.coll = coll;
  spec.ns = ns;
  spec.filter = a.query;
  spec.hint = a.hint;
  MAYFLY_TRY(std::unique_ptr<DistinctExecutor> distinct,
             MakeDistinctExecutor(ctx.server.storage(), ctx.op, spec, a.key));
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = distinct->PlanSummary(); });
  BsonArrayBuilder values = reply.OpenArray("values");
  return distinct->Run([&](BsonValue v) -> Result<void> {
    if (values.size() + v.size() > static_cast<size_t>(kMaxBsonUserSize))
      return Error{LocationCode(17217), "distinct too big, 16mb cap"};
    values.Append(v);
    return Ok();
  });
}

}  // namespace

void RegisterFind(CommandRegistry& registry) {
  registry.Add({.name = "find",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kTakesReadConcern | kCountsItself,
                .help = "Finds documents and answers a cursor.",
                .run_async = &RunFind});
  registry.Add({.name = "getMore",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kCountsItself,
                .help = "The next batch of a cursor.",
                .run_async = &RunGetMore});
  registry.Add({.name = "killCursors",
                .flags = kReadOnly | kSecondaryOk | kApiV1,
                .help = "Closes cursors.",
                .run = &RunKillCursors});
  registry.Add({.name = "count",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kTakesReadConcern | kWorker,
                .help = "Counts the documents that match a filter.",
                .run = &RunCount});
  registry.Add({.name = "distinct",
                .flags = kReadOnly | kSecondaryOk | kTakesReadConcern | kWorker,
                .help = "The different values of a field.",
                .run = &RunDistinct});
}

}  // namespace mayfly
