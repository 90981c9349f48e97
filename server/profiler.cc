#include "server/profiler.h"

#include "protocol/object_id.h"
#include "server/server_context.h"
#include "storage/storage.h"

namespace mayfly {

namespace {
constexpr int64_t kProfileBytes = 1024 * 1024;
constexpr std::string_view kProfileCollection = "system.profile";
constexpr uint32_t kMaxCommandBytes = 50 * 1024;  // longer commands are shown as text, cut

bool Sampled(double rate) {
  if (rate >= 1) return true;
  thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state) | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<double>(state >> 11) * 0x1.0p-53 < rate;
}

std::string NamespaceOf(const CommandContext& ctx, const CommandRequest& req) {
  if (!ctx.report.ns.empty()) return ctx.report.ns;
  std::string ns(req.db);
  const BsonValue first = req.fields.empty() ? BsonValue() : req.fields[0].value;
  ns.append(1, '.').append(first.IsString() ? first.String() : std::string_view("$cmd"));
  return ns;
}

/// The fields that the profiler's document and the log's line share.
void AppendCosts(const CommandContext& ctx, const Error* error, int64_t reply_bytes,
                 BsonBuilder& out) {
  const Operation& op = ctx.op;
  const OperationReport& r = ctx.report;
  if (r.cursor_id != 0) out.Append("cursorid", r.cursor_id);
  if (op.keys_examined || op.docs_examined || !r.plan_summary.empty())
    out.Append("keysExamined", op.keys_examined).Append("docsExamined", op.docs_examined);
  if (r.has_sort_stage) out.Append("hasSortStage", true);
  if (r.used_disk) out.Append("usedDisk", true);
  if (r.from_multi_planner) out.Append("fromMultiPlanner", true);
  if (op.n_matched) out.Append("nMatched", op.n_matched);
  if (op.n_modified) out.Append("nModified", op.n_modified);
  if (op.n_inserted) out.Append("ninserted", op.n_inserted);
  if (op.n_deleted) out.Append("ndeleted", op.n_deleted);
  if (r.upsert) out.Append("nUpserted", int64_t{1});
  if (op.keys_inserted) out.Append("keysInserted", op.keys_inserted);
  if (op.keys_deleted) out.Append("keysDeleted", op.keys_deleted);
  if (op.write_conflicts) out.Append("writeConflicts", op.write_conflicts);
  if (r.cursor_exhausted) out.Append("cursorExhausted", true);
  out.Append("numYield", op.yields);
  if (op.n_returned || r.op == "query" || r.op == "getmore") out.Append("nreturned", op.n_returned);
  if (error != nullptr) {
    out.Append("ok", 0.0).Append("errMsg", error->message);
    out.Append("errName", ErrorCodeName(error->code))
        .Append("errCode", static_cast<int32_t>(error->code));
  }
  out.Append("responseLength", reply_bytes);
}

void AppendCommand(const CommandRequest& req, BsonBuilder& out) {
  if (req.body.size() <= kMaxCommandBytes) {
    out.Append("command", req.body);
    return;
  }
  // The array that makes it long goes; its length stays.
  BsonBuilder command = out.OpenDocument("command");
  for (const CommandField& f : req.fields) {
    if (f.value.size() > kMaxCommandBytes / 4) {
      command.Append(f.name,
                     std::string("(") + std::to_string(f.value.size()) + " bytes left out)");
    } else {
      command.Append(f.name, f.value);
    }
  }
  command.Done();
}

}  // namespace

Profiler::Settings Profiler::Get(std::string_view db) const {
  std::lock_guard l(mutex_);
  auto it = settings_.find(std::string(db));
  if (it != settings_.end()) return it->second;
  Settings s;
  s.level = default_level;
  return s;
}

void Profiler::Set(std::string_view db, Settings s) {
  std::lock_guard l(mutex_);
  settings_[std::string(db)] = std::move(s);
  bool any = default_level > 0;
  for (const auto& [name, x] : settings_) any |= x.level > 0 || x.filter != nullptr;
  active_ = any;
}

Profiler::Verdict Profiler::Judge(ServerContext& server, const CommandContext& ctx,
                                  const CommandRequest& req, int64_t micros, const Error* error,
                                  int64_t reply_bytes) const {
  Verdict v;
  const int64_t slow = slow_ms.load(std::memory_order_relaxed);
  const bool is_slow =
      micros >= slow * 1000 && Sampled(sample_rate.load(std::memory_order_relaxed));
  v.log = is_slow;
  if (!active()) return v;
  const Settings s = Get(req.db);
  if (s.filter) {
    const BsonDocument d = Describe(server, ctx, req, micros, error, reply_bytes);
    auto matched = s.filter->Matches(d.view());
    v.log = matched && matched.value();
    v.profile = s.level > 0 && v.log;
  } else {
    v.profile = s.level >= 2 || (s.level == 1 && is_slow);
  }
  // Reading the profile is not itself profiled: it would never end.
  if (v.profile && NamespaceOf(ctx, req).ends_with(".system.profile")) v.profile = false;
  if (req.db == "local" || req.db == "admin" || req.db == "config")
    v.profile = v.profile && req.db == "admin";
  return v;
}

BsonDocument Profiler::Describe(ServerContext& server, const CommandContext& ctx,
                                const CommandRequest& req, int64_t micros, const Error* error,
                                int64_t reply_bytes) {
  return BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", NewObjectId(ctx.op.now));
    b.Append("op", ctx.report.op).Append("ns", NamespaceOf(ctx, req));
    AppendCommand(req, b);
    if (!ctx.report.originating_command.view().empty())
      b.Append("originatingCommand", ctx.report.originating_command);
    AppendCosts(ctx, error, reply_bytes, b);
    b.Append("protocol", "op_msg");
    b.Append("millis", micros / 1000);
    if (!ctx.report.plan_summary.empty()) b.Append("planSummary", ctx.report.plan_summary);
    b.Append("ts", server.clock().Now());
    if (ctx.client != nullptr) {
      b.Append("client", ctx.client->address);
      if (std::string app = ctx.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    b.OpenArray("allUsers").Done();
    b.Append("user", "");
  });
}

BsonDocument Profiler::LogAttributes(ServerContext&, const CommandContext& ctx,
                                     const CommandRequest& req, int64_t micros, const Error* error,
                                     int64_t reply_bytes) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("type", ctx.report.op).Append("ns", NamespaceOf(ctx, req));
    if (ctx.client != nullptr) {
      if (std::string app = ctx.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    AppendCommand(req, b);
    if (!ctx.report.originating_command.view().empty())
      b.Append("originatingCommand", ctx.report.originating_command);
    if (!ctx.report.plan_summary.empty()) b.Append("planSummary", ctx.report.plan_summary);
    AppendCosts(ctx, error, reply_bytes, b);
    if (ctx.client != nullptr) b.Append("remote", ctx.client->address);
    b.Append("protocol", "op_msg").Append("durationMillis", micros / 1000);
  });
}

namespace {

Result<void> InsertProfile(ServerContext& server, const std::string& db, const BsonDocument& doc) {
  Operation op(server.clock());
  CollectionInfoPtr coll = server.storage().catalog().Find(db, kProfileCollection);
  if (coll == nullptr) {
    CollectionInfo definition;
    definition.db = db;
    definition.name = kProfileCollection;
    definition.ns = db + "." + std::string(kProfileCollection);
    definition.capped = true;
    definition.capped_bytes = kProfileBytes;
    definition.options =
        BuildBson([&](BsonBuilder& b) { b.Append("capped", true).Append("size", kProfileBytes); });
    auto made = server.storage().catalog().Create(op, std::move(definition));
    if (!made && made.error().code != ErrorCode::kNamespaceExists) return std::move(made).error();
    coll = server.storage().catalog().Find(db, kProfileCollection);
    if (coll == nullptr)
      return Error{ErrorCode::kNamespaceNotFound, "system.profile was dropped meanwhile"};
  }
  WriteUnit unit(server.storage(), op);
  MAYFLY_TRY(unit.Insert(*coll, doc.view()));
  MAYFLY_TRY(server.storage().committer().Commit(std::move(unit)));
  server.notifier().Notify(coll->id);
  return Ok();
}

}  // namespace

void Profiler::Write(ServerContext& server, const CommandContext& ctx, const CommandRequest& req,
                     int64_t micros, const Error* error, int64_t reply_bytes) {
  if (!server.has_storage()) return;
  auto doc = std::make_shared<BsonDocument>(Describe(server, ctx, req, micros, error, reply_bytes));
  server.workers().Post([&server, doc, db = std::string(req.db)] {
    auto done = InsertProfile(server, db, *doc);
    if (!done)
      server.log().Write(LogSeverity::kWarning, LogComponent::kCommand, 9000101,
                         "Could not write to system.profile", BuildBson([&](BsonBuilder& b) {
                           b.Append("db", db).Append("error", done.error().message);
                         }));
  });
}

}  // namespace mayfly
