#include <algorithm>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/dispatch/expiry_services.h"
#include "server/dispatch/fail_points.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/dispatch/short_reads.h"
#include "server/execution/aggregate.h"
#include "server/execution/change_stream_cursor.h"
#include "server/execution/find_args.h"
#include "server/execution/inline_writes.h"
#include "server/execution/transactions.h"
#include "server/net/connection.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

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
  size_t KeptBytes() const override { return executor_->KeptBytes(); }
  void AddKept(large_memory::Kept* kept) const override { executor_->AddKept(kept); }

  std::unique_ptr<PlanExecutor> executor_;
  CollectionInfoPtr coll_;
  const bool await_;
  bool parked_ = false, exhausted_ = false;
};

/// A find that has been read and whose collection was looked up.
struct PreparedFind {
  FindArgs args;
  CollectionInfoPtr coll;  ///< null while it does not exist
  std::string absent_ns;   ///< then
  std::string deadline_field;
  QuerySpec spec;
  std::string_view ns() const { return coll ? std::string_view(coll->ns) : absent_ns; }
};

Result<void> PrepareFind(CommandContext& ctx, const CommandRequest& req, PreparedFind* find) {
  MAYFLY_TRY(find->args, ParseFind(req));
  const FindArgs& a = find->args;
  MAYFLY_TRY(ValidateNamespace(req.db, a.collection));
  MAYFLY_TRY(find->coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.collection));
  if (!find->coll) find->absent_ns = JoinNamespace(req.db, a.collection);
  find->spec = a.ToSpec(find->coll, find->ns());
  find->deadline_field = DeadlineFieldOf(ctx);
  find->spec.deadline_field = find->deadline_field;
  if (!find->deadline_field.empty()) [[unlikely]] {
    MAYFLY_TRY(RefuseDeadlineFilter(a.filter, find->deadline_field));
    MAYFLY_TRY(RefuseDeadlineFilter(a.sort, find->deadline_field));
  }
  find->spec.memory_limit = ctx.data.settings().sort_bytes();
  return Ok();
}

/// The shortest path: one look-up, straight into the reply. A document that takes long to copy or
/// to project is left to a worker, which the average of its collection cannot tell: each of these
/// takes about half a millisecond.
std::optional<Result<void>> AnswerPointRead(CommandContext& ctx, const PreparedFind& find,
                                            BsonValue id, BsonBuilder& reply) {
  const FindArgs& a = find.args;
  PointReadLimits limits{.whole = 256 << 10, .projected = 64 << 10};
  int found = 0;
  {
    BsonBuilder cursor = reply.OpenDocument("cursor");
    BsonArrayBuilder batch = cursor.OpenArray("firstBatch");
    if (!a.batch_size || *a.batch_size > 0) {
      MAYFLY_TRY(found, RunPointRead(ctx.data.storage(), ctx.op, find.spec, id, batch, &limits));
    }
    if (limits.longer > 0) [[unlikely]] {
      MetDocument(*find.coll, limits.longer, ctx.op.now);
      return std::nullopt;
    }
    batch.Done();
    cursor.Append("id", int64_t{0}).Append("ns", find.ns());
  }
  ctx.op.n_returned = found;
  ctx.data.metrics().documents.returned.Add(found);
  ctx.EditReport([&](OperationReport& r) {
    r.op = "query";
    r.ns.assign(find.ns());
    r.plan_summary = "IDHACK";
    r.reply_documents = found;
    r.cursor_exhausted = true;
  });
  return Result<void>(Ok());
}

/// Every other find, up to its first batch. Blocking.
Result<void> AnswerFind(CommandContext& ctx, const CommandRequest& req, PreparedFind& find,
                        BsonBuilder& reply) {
  const FindArgs& a = find.args;
  const CollectionInfoPtr& coll = find.coll;
  ctx.EditReport([&](OperationReport& r) {
    r.op = "query";
    r.ns.assign(find.ns());
  });
  std::unique_ptr<ServerCursor> source;
  std::string plan_summary;
  if (coll && coll->is_view()) {
    MAYFLY_TRY(BsonDocument pipeline, a.ToPipeline());
    AggregateSpec view = a.OnView(req.db, pipeline);
    view.clients = &ctx.server;
    MAYFLY_TRY(source, OpenPipeline(ctx.expiry, ctx.op, view, &plan_summary));
  } else {
    std::unique_ptr<PlanExecutor> executor;
    size_t parsed = 0, kept = 0;
    {
      ParseWork work(&ctx.op);
      MAYFLY_TRY(executor, MakeFindExecutor(ctx.data.storage(), ctx.op, std::move(find.spec)));
      parsed = work.bytes();
      kept = work.kept_bytes();
    }
    plan_summary = executor->PlanSummary();
    source = std::make_unique<FindCursor>(std::move(executor), coll, a.await_data);
    MAYFLY_TRY(source->HoldParsed(parsed, kept));
  }
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = plan_summary; });
  int64_t batch =
      a.batch_size.value_or(a.single_batch || a.limit > 0 ? INT64_MAX : kDefaultFirstBatch);
  if (a.single_batch && a.batch_size && a.limit > 0 && *a.batch_size > a.limit) batch = a.limit;
  auto make_client = [&] {
    auto client = MakeClientCursor(ctx, req, find.ns());
    client->no_timeout = a.no_cursor_timeout;
    client->single_batch = a.single_batch;
    client->plan_summary = std::move(plan_summary);
    return client;
  };
  // By reference: a copy of so much would be allocated.
  MAYFLY_TRY(const int64_t id,
             ReplyFirstBatch(ctx.data.cursors(), ctx.op, std::move(source), find.ns(), batch,
                             a.single_batch, std::ref(make_client), reply));
  ReportCursor(ctx, id);
  ctx.data.metrics().documents.returned.Add(ctx.op.n_returned);
  return Ok();
}

/// A projection that names fields to show or to leave out. Any other may be an expression, which
/// may take as long as it likes on a single document.
bool IsPlainProjection(BsonView projection) {
  if (projection.empty()) return true;
  if (projection.size() > 1024) return false;
  for (const BsonElement& e : projection)
    if (!e.value.IsNumber() && !e.value.Is(BsonType::kBool)) return false;
  return true;
}

/// Whether the look-up of one document may be done on an io thread.
bool IsShortPointRead(Storage& storage, const PreparedFind& find, BsonValue id, Instant now) {
  constexpr size_t kLongId = 64 << 10;  // its key is made of all of it
  return id.size() <= kLongId && IsPlainProjection(find.spec.projection) &&
         ReadIsShort(*find.coll, now) && ExpiryIsShort(*find.coll) &&
         !MayAskHolds(storage, *find.coll, now);
}

std::optional<Result<void>> FindNow(CommandContext& ctx, const CommandRequest& req,
                                    BsonBuilder& reply) {
  PreparedFind find;
  MAYFLY_TRY(PrepareFind(ctx, req, &find));
  auto counted = [&](std::optional<Result<void>> answer) {
    if (answer) ctx.data.metrics().opcounters.query.Add();
    return answer;
  };
  const FindArgs& a = find.args;
  BsonValue id;
  if (find.coll && !IsNeverShort(*find.coll) && ctx.op.view == nullptr &&
      IsPointRead(find.spec, &id)) {
    if (!IsShortPointRead(ctx.data.storage(), find, id, ctx.op.now)) [[unlikely]]
      return std::nullopt;
    return counted(AnswerPointRead(ctx, find, id, reply));
  }
  if ((find.coll && IsNeverShort(*find.coll)) || a.tailable || !a.let.empty()) return std::nullopt;
  const uint32_t shape =
      ReadShape("find", req.db, a.collection, {a.filter, a.sort, a.projection, a.min, a.max});
  return counted(
      TryShortRead(ctx, find.coll.get(), shape, [&] { return AnswerFind(ctx, req, find, reply); }));
}

Awaitable<Result<void>> RunFind(CommandContext& ctx, const CommandRequest& req,
                                BsonBuilder& reply) {
  PreparedFind find;
  MAYFLY_CO_TRY(PrepareFind(ctx, req, &find));
  ctx.data.metrics().opcounters.query.Add();
  MAYFLY_CO_TRY(co_await ctx.MoveToWorkerWithRoom());
  co_return AnswerFind(ctx, req, find, reply);
}

/// Every entry of the log wakes a waiting change stream. It reads the first one at once; if that
/// does not concern it, it reads on no sooner than this after the last look.
constexpr int64_t kStreamRestMicros = 5000;
/// A cursor that waits looks so often whether its user may still read.
constexpr int64_t kLookMicros = 1'000'000;
/// Nothing notifies this one: no collection and no ReplEvent has the id.
constexpr uint32_t kNobody = 0xFFFF'FEFF;

struct GetMoreArgs {
  int64_t id = 0, batch_size = 0, await_ms = 0;
  std::string_view collection;
};

Result<GetMoreArgs> ReadGetMore(const CommandRequest& req) {
  ArgReader in(req);
  GetMoreArgs a;
  const BsonValue id = in.Any("getMore");
  // check_names: compared with the cursor's
  a.collection = in.String("collection");
  a.batch_size = in.NonNegativeOr("batchSize", 0);
  a.await_ms = req.generic.max_time_ms > 0 ? req.generic.max_time_ms : 1000;
  in.Ignore("term");  // unused: of a member that reads another one's oplog; entries have their own
  in.Ignore("lastKnownCommittedOpTime");  // unused: of such a member, too
  MAYFLY_TRY(in.Finish());
  if (!id.Is(BsonType::kInt64))
    return Error{ErrorCode::kTypeMismatch, "BSON field 'getMore.getMore' is the wrong type '" +
                                               std::string(BsonTypeName(id.type())) +
                                               "', expected type 'long'"};
  if (in.Has("batchSize") && a.batch_size <= 0)
    return Error{ErrorCode::kBadValue, "Batch size for getMore must be positive, but received: " +
                                           std::to_string(a.batch_size)};
  if (a.collection.empty())
    return Error{ErrorCode::kInvalidNamespace, "Collection names cannot be empty"};
  a.id = id.Int64();
  return a;
}

Error OfStream(Error e) {
  LabelStreamError(&e);
  return e;
}

/// Users or roles have changed since the cursor was opened, or since the last check: checks whether
/// its user may still run the command that opened it, which may be long.
Result<void> CheckStillAllowed(CommandContext& ctx, ClientCursor& client) {
  ParseWork work(&ctx.op);
  const BsonView whole = client.whole_command.view();
  CommandRequest opened;
  MAYFLY_TRY(ParseCommandFields(whole.empty() ? client.originating_command.view() : whole, &opened,
                                client.db));
  const CommandRow* row = ctx.server.commands().Find(opened.name);
  if (row != nullptr && row->privileges != nullptr) {
    Result<void> allowed = row->privileges(
        {opened, ctx.access->privileges, &ctx.access->user.name, &ctx.access->user.roles});
    MAYFLY_TRY(ParseWork::Look());  // one that was interrupted has not looked at all of it
    MAYFLY_TRY(std::move(allowed));
  }
  MAYFLY_TRY(CheckNeedsOfUuid(ctx, client.needs, client.db));
  client.access_generation = ctx.access->generation;
  return Ok();
}

/// The user of a getMore that has waited may have been dropped meanwhile.
bool UsersHaveChanged(const CommandContext& ctx) {
  return ctx.access != nullptr && ctx.connection != nullptr &&
         ctx.access->generation != ctx.server.access().users().generation();
}

/// Before each batch, on a worker.
Result<void> CheckUser(CommandContext& ctx, ClientCursor& client) {
  if (UsersHaveChanged(ctx)) [[unlikely]] {
    MAYFLY_TRY(ctx.connection->RefreshLogin(ctx));
    if (ctx.connection->login.access == nullptr)
      return Error{ErrorCode::kUnauthorized, "Command getMore requires authentication"};
  }
  if (ctx.access == nullptr || client.access_generation == ctx.access->generation) [[likely]]
    return Ok();
  return CheckStillAllowed(ctx, client);
}

/// The operation takes the cursor: its point in time, its time left. On an error the cursor is put
/// back, or gone.
Result<CheckedOutCursor> TakeCursor(CommandContext& ctx, const CommandRequest& req,
                                    const GetMoreArgs& a) {
  CursorManager& cursors = ctx.data.cursors();
  // The cursors of a transaction belong to a separate session.
  const bool in_transaction = ctx.op.view != nullptr && ctx.op.view->has_own_writes();
  const std::string session = ctx.session == nullptr ? std::string()
                              : in_transaction
                                  ? TransactionCursors(ctx.session->id(), *req.generic.txn_number)
                                  : std::string(ctx.session->id());
  const std::string user = ctx.access != nullptr ? ctx.access->user.name.Id() : std::string();
  MAYFLY_TRY(CheckedOutCursor client,
             cursors.CheckOut(a.id, req.db, a.collection, session, user, ctx.op));
  if (client->point != nullptr && !in_transaction) {
    Result<ReadViewPtr> view = ctx.data.snapshot_reads().Continue(*client->point);
    if (!view) return std::move(view).error();
    ctx.op.view = std::move(view).value();
    // The batches of one cursor hide the same, whenever they come.
    ctx.op.now = client->point->now();
  }
  if (ctx.data.fail_points().any()) [[unlikely]] {
    if (auto fired = ctx.data.fail_points().Fire("failGetMoreAfterCursorCheckout")) {
      const bool stream = client->cursor->change_stream();
      cursors.CheckIn(std::move(client));
      const BsonView data = fired->view();
      ctx.close_connection = data["closeConnection"].Truthy();
      Error failed{static_cast<ErrorCode>(data["errorCode"].NumberAsInt64()),
                   "Failing getMore via 'failGetMoreAfterCursorCheckout' failpoint"};
      return stream ? OfStream(std::move(failed)) : failed;
    }
  }
  const bool tailable = client->cursor->tailable();
  const bool await = tailable && client->cursor->await_data();
  if (req.generic.max_time_given && !await) {
    cursors.CheckIn(std::move(client));
    return Error{ErrorCode::kBadValue,
                 "cannot set maxTimeMS on getMore command for a non-awaitData cursor"};
  }
  ctx.EditReport([&](OperationReport& r) {
    r.plan_summary = client->plan_summary;
    r.originating_command = client->originating_command;
  });
  if (client->reads_credentials) ctx.op.reads_credentials.store(true, std::memory_order_relaxed);
  // The time a find was given is for all its batches together; a tailable cursor's getMore brings
  // its own, which is how long it waits.
  if (client->time_left_micros > 0 && !tailable) {
    ctx.op.deadline_micros = ctx.data.clock().MonotonicMicros() + client->time_left_micros;
    if (Result<void> time = FireMaxTime(ctx.data.fail_points(), ctx.op); !time) return time.error();
  }
  if (await) ctx.op.deadline_micros = 0;
  return client;
}

/// Puts the cursor back and says what the batch was.
void ReplyNextBatch(CommandContext& ctx, const CommandRequest& req, CheckedOutCursor client,
                    const std::string& batch, int count, BsonBuilder& reply) {
  ctx.op.n_returned = count;
  ctx.data.metrics().documents.returned.Add(count);
  const int64_t id = client->id;
  const std::string ns = client->ns;
  ctx.data.cursors().CountBatch(*client);
  client->documents_returned += count;
  if (client->time_left_micros > 0 && !client->cursor->tailable() && ctx.op.deadline_micros > 0)
    client->time_left_micros =
        std::max<int64_t>(1, ctx.op.deadline_micros - ctx.data.clock().MonotonicMicros());
  client->cursor->Park();
  // A stage may open what it reads late.
  client->reads_credentials = ctx.op.reads_credentials.load(std::memory_order_relaxed);
  BsonBuilder cursor = reply.OpenDocument("cursor");
  cursor.AppendArray("nextBatch", BsonView(batch));
  client->cursor->AppendPosition(cursor);
  const bool alive = ctx.data.cursors().CheckIn(std::move(client));
  cursor.Append("id", alive ? id : int64_t{0}).Append("ns", ns);
  cursor.Done();
  ctx.EditReport([&](OperationReport& r) {
    r.reply_documents = count;
    r.cursor_exhausted = !alive;
  });
  // An exhaust stream goes on until the cursor has ended.
  ctx.more_to_come = req.exhaust_allowed && alive;
}

Awaitable<Result<void>> RunGetMore(CommandContext& ctx, const CommandRequest& req,
                                   BsonBuilder& reply) {
  MAYFLY_CO_TRY(const GetMoreArgs a, ReadGetMore(req));
  ctx.data.metrics().opcounters.getmore.Add();
  ctx.EditReport([&](OperationReport& r) {
    r.op = "getmore";
    r.ns = JoinNamespace(req.db, a.collection);
    r.cursor_id = a.id;
  });
  MAYFLY_CO_TRY(CheckedOutCursor client, TakeCursor(ctx, req, a));
  const bool stream = client->cursor->change_stream();
  const bool await = client->cursor->tailable() && client->cursor->await_data();
  const SystemClock& clock = ctx.data.clock();
  const int64_t deadline = clock.MonotonicMicros() + a.await_ms * 1000;
  std::string bytes;
  int count = 0;
  Result<void> result = Ok();
  int64_t rest_until = 0, reads = 0;
  for (bool again = true; again;) {
    again = false;
    if (clock.MonotonicMicros() < std::min(rest_until, deadline)) {
      CollectionNotifier::Watch rest(ctx.data.notifier(), kNobody);
      Result<bool> rested = co_await rest.WaitFor(ctx, std::min(rest_until, deadline));
      if (!rested) {
        result = rested.error();
        break;
      }
    }
    if (stream && ++reads > 1) rest_until = clock.MonotonicMicros() + kStreamRestMicros;
    std::optional<CollectionNotifier::Watch> watch;
    if (await) watch.emplace(ctx.data.notifier(), client->cursor->collection_id());
    result = co_await ctx.MoveToWorkerWithRoom();
    if (result) result = CheckUser(ctx, *client);
    if (!result) break;
    bytes.clear();
    {
      BsonArrayBuilder batch(bytes);
      result = client->cursor->NextBatch(ctx.op, a.batch_size == 0 ? INT64_MAX : a.batch_size,
                                         kMaxBatchBytes, batch);
      count = batch.count();
    }
    if (!result) break;
    if (await && count == 0 && !client->cursor->Exhausted() && !client->cursor->behind() &&
        clock.MonotonicMicros() < deadline) {
      client->cursor->Park();
      co_await ctx.MoveToIo();
      Result<bool> woken = false;
      for (bool waits = true; waits && !again;) {
        const int64_t look = clock.MonotonicMicros() + kLookMicros;
        woken = co_await watch->WaitFor(
            ctx, ctx.access != nullptr ? std::min(deadline, look) : deadline);
        waits = woken && !woken.value() && clock.MonotonicMicros() < deadline;
        again = (woken && woken.value()) || UsersHaveChanged(ctx);
      }
      if (!woken) {
        result = woken.error();
        break;
      }
    }
  }
  if (!result) {
    if (stream) co_return OfStream(result.error());
    co_return result;
  }
  ReplyNextBatch(ctx, req, std::move(client), bytes, count, reply);
  co_return Ok();
}

Result<void> RunKillCursors(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view collection = in.Collection();
  BsonView ids = in.Array("cursors");
  MAYFLY_TRY(in.Finish());
  size_t given = 0;
  for (const BsonElement& e : ids) {
    if (++given > SessionRegistry::kMaxIds)
      return Error{ErrorCode::kBadValue, "BSON field 'killCursors.cursors' has more than the " +
                                             std::to_string(SessionRegistry::kMaxIds) +
                                             " cursors it may have: send the others after them"};
    if (!e.value.Is(BsonType::kInt64))
      return Error{ErrorCode::kTypeMismatch, "BSON field 'killCursors.cursors." +
                                                 std::string(e.name) + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'long'"};
  }
  // Those of others need a privilege.
  std::string own;
  std::optional<std::string_view> of_user;
  if (ctx.access != nullptr && !ctx.access->privileges.AllowsOnCluster({Action::killAnyCursor}) &&
      !ctx.access->privileges.Allows(req.db, collection, {Action::killAnyCursor})) {
    own = ctx.access->user.name.Id();
    of_user = own;
  }
  std::vector<int64_t> killed, missing;
  for (const BsonElement& e : ids) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    const auto done = ctx.data.cursors().Kill(e.value.Int64(), req.db, collection, of_user);
    if (done == CursorManager::KillResult::kNotOwner)
      return Error{ErrorCode::kUnauthorized, "not authorized to kill cursor " +
                                                 std::to_string(e.value.Int64()) +
                                                 ", which another user has opened"};
    (done == CursorManager::KillResult::kKilled ? killed : missing).push_back(e.value.Int64());
  }
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

/// The first document that a pipeline over a view gives, as an array of at most one.
Result<std::string> FirstOfPipeline(CommandContext& ctx, std::string_view db,
                                    std::string_view collection, BsonView pipeline,
                                    BsonValue hint) {
  AggregateSpec spec;
  spec.clients = &ctx.server;
  spec.hint = hint;
  spec.db = db;
  spec.collection = collection;
  spec.pipeline = pipeline;
  MAYFLY_TRY(std::unique_ptr<ServerCursor> cursor, OpenPipeline(ctx.expiry, ctx.op, spec, nullptr));
  std::string out;
  {
    BsonArrayBuilder batch(out);
    MAYFLY_TRY(cursor->NextBatch(ctx.op, 1, kMaxBatchBytes, batch));
  }
  return out;
}

/// What count and distinct read in common. Views into `a`, `ns` and the request.
template <class Args>
QuerySpec SpecOf(const Args& a, CollectionInfoPtr coll, std::string_view ns) {
  QuerySpec spec;
  spec.coll = std::move(coll);
  spec.ns = ns;
  spec.filter = a.query;
  spec.hint = a.hint;
  spec.allow_where = true;
  return spec;
}

Result<void> RunCount(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(CountArgs a, ParseCount(req));
  MAYFLY_TRY(ValidateNamespace(req.db, a.collection));
  MAYFLY_TRY(CollectionInfoPtr coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.collection));
  ctx.EditReport([&](OperationReport& r) { r.ns = JoinNamespace(req.db, a.collection); });
  int64_t n = 0;
  if (coll && coll->is_view()) {
    MAYFLY_TRY(std::string out, FirstOfPipeline(ctx, req.db, a.collection, a.ToPipeline(), a.hint));
    n = BsonView(out).FindPath("0.n").NumberAsInt64();
  } else {
    const std::string ns = JoinNamespace(req.db, a.collection);
    QuerySpec spec = SpecOf(a, coll, ns);
    spec.skip = a.skip;
    spec.limit = a.limit;
    MAYFLY_TRY(std::unique_ptr<CountExecutor> count,
               MakeCountExecutor(ctx.data.storage(), ctx.op, spec));
    ctx.EditReport([&](OperationReport& r) { r.plan_summary = count->PlanSummary(); });
    MAYFLY_TRY(n, count->Count());
  }
  if (n > INT32_MAX)
    reply.Append("n", n);
  else
    reply.Append("n", static_cast<int32_t>(n));
  return Ok();
}

/// The values of distinct come in their order, also those that no index gives in it: as users of
/// MongoDB see them, and count on (Beanie's tests do).
void AppendInOrder(std::vector<BsonValue> values, BsonBuilder& reply) {
  std::sort(values.begin(), values.end(),
            [](BsonValue a, BsonValue b) { return CompareValues(a, b) < 0; });
  BsonArrayBuilder list = reply.OpenArray("values");
  for (BsonValue v : values) list.Append(v);
}

Result<void> RunDistinct(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(DistinctArgs a, ParseDistinct(req));
  MAYFLY_TRY(ValidateNamespace(req.db, a.collection));
  MAYFLY_TRY(CollectionInfoPtr coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.collection));
  ctx.EditReport([&](OperationReport& r) { r.ns = JoinNamespace(req.db, a.collection); });
  if (coll && coll->is_view()) {
    const BsonDocument pipeline = a.ToPipeline(coll->series ? coll->series->meta_field : "");
    MAYFLY_TRY(std::string out, FirstOfPipeline(ctx, req.db, a.collection, pipeline, a.hint));
    std::vector<BsonValue> values;
    if (const BsonValue list = BsonView(out).FindPath("0.values"); list.IsArray())
      for (const BsonElement& e : list.Document()) values.push_back(e.value);
    AppendInOrder(std::move(values), reply);
    return Ok();
  }
  const std::string ns = JoinNamespace(req.db, a.collection);
  const QuerySpec spec = SpecOf(a, coll, ns);
  MAYFLY_TRY(std::unique_ptr<DistinctExecutor> distinct,
             MakeDistinctExecutor(ctx.data.storage(), ctx.op, spec, a.key));
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = distinct->PlanSummary(); });
  if (ctx.op.read_ts != 0) reply.AppendTimestamp("atClusterTime", ctx.op.read_ts);
  std::vector<BsonValue> values;
  size_t bytes = 0;
  MAYFLY_TRY(distinct->Run([&](BsonValue v) -> Result<void> {
    // As an element of the array: its type, and its index as a name of up to seven digits.
    bytes += v.size() + 9;
    if (bytes > static_cast<size_t>(kMaxBsonUserSize))
      return Error{LocationCode(17217), "distinct too big, 16mb cap"};
    values.push_back(v);
    return Ok();
  }));
  AppendInOrder(std::move(values), reply);
  return Ok();
}

/// count and distinct on an io thread, when they are short there.
std::optional<Result<void>> CountNow(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  MAYFLY_TRY(CountArgs a, ParseCount(req));
  MAYFLY_TRY(CollectionInfoPtr coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.collection));
  if (coll && IsNeverShort(*coll)) return std::nullopt;
  const uint32_t shape = ReadShape("count", req.db, a.collection, {a.query});
  return TryShortRead(ctx, coll.get(), shape, [&] { return RunCount(ctx, req, reply); });
}

std::optional<Result<void>> DistinctNow(CommandContext& ctx, const CommandRequest& req,
                                        BsonBuilder& reply) {
  MAYFLY_TRY(DistinctArgs a, ParseDistinct(req));
  MAYFLY_TRY(CollectionInfoPtr coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.collection));
  if (coll && IsNeverShort(*coll)) return std::nullopt;
  const uint32_t shape = ReadShape("distinct", req.db, a.collection, {a.query});
  return TryShortRead(ctx, coll.get(), shape, [&] { return RunDistinct(ctx, req, reply); });
}

}  // namespace

void RegisterFind(CommandRegistry& registry) {
  registry.Add({.name = "find",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kTakesReadConcern |
                         kCountsItself,
                .help = "Finds documents and answers a cursor.",
                .run_async = &RunFind,
                .run_now = &FindNow,
                .privileges = &privileges::Find});
  registry.Add({.name = "getMore",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kCountsItself,
                .help = "The next batch of a cursor.",
                .run_async = &RunGetMore,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "killCursors",
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kWorker,
                .help = "Closes cursors.",
                .run = &RunKillCursors,
                .privileges = &privileges::LoggedIn});
  registry.Add(
      {.name = "count",
       .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kTakesReadConcern | kWorker,
       .help = "Counts the documents that match a filter.",
       .run = &RunCount,
       .run_now = &CountNow,
       .privileges = &privileges::OnCollection<Action::find>});
  registry.Add({.name = "distinct",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kTakesReadConcern | kWorker,
                .help = "The different values of a field.",
                .run = &RunDistinct,
                .run_now = &DistinctNow,
                .privileges = &privileges::OnCollection<Action::find>});
}

}  // namespace mayfly
