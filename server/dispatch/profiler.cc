#include "server/dispatch/profiler.h"

#include "protocol/database_name.h"
#include "protocol/extended_json.h"
#include "protocol/micros.h"
#include "protocol/object_id.h"
#include "protocol/system_names.h"
#include "server/dispatch/server_context.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {

namespace {
constexpr int64_t kProfileBytes = 1024 * 1024;
constexpr size_t kMaxQueue = 4096;                // entries that wait to be written
constexpr uint32_t kMaxCommandBytes = 50 * 1024;  // longer commands are shown as text, cut

bool Sampled(double rate) {
  if (rate >= 1) return true;
  thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state) | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<double>(state >> 11) * 0x1.0p-53 < rate;
}

std::string NamespaceOf(const FinishedOperation& f) {
  const CommandRequest& req = f.request;
  if (!f.report.ns.empty()) return f.report.ns;
  std::string ns(req.db);
  const BsonValue first = req.fields.empty() ? BsonValue() : req.fields[0].value;
  ns.append(1, '.').append(first.IsString() ? first.String() : std::string_view("$cmd"));
  return ns;
}

/// The fields that the profiler's document and the log's line share.
void AppendCosts(const FinishedOperation& f, BsonBuilder& out) {
  const Operation& op = f.op;
  const OperationReport& r = f.report;
  const Error* error = f.error;
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
  // Of a write, what its search has handed on is nothing that was returned.
  const bool write = r.op == "update" || r.op == "remove";
  if ((op.n_returned && !write) || r.op == "query" || r.op == "getmore")
    out.Append("nreturned", op.n_returned);
  if (error != nullptr) {
    out.Append("ok", 0.0).Append("errMsg", error->message);
    out.Append("errName", ErrorCodeName(error->code))
        .Append("errCode", static_cast<int32_t>(error->code));
  }
  out.Append("responseLength", f.reply_bytes);
}

/// Up to `size` bytes, and not the half of a character.
void CutAtCharacter(std::string& text, size_t size) {
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  text.resize(size);
}

/// The document as text, as far as kMaxCommandBytes reach: what is behind that is not looked at.
void AppendCut(BsonView doc, bool array, std::string& out) {
  out += array ? "[ " : "{ ";
  bool first = true;
  for (const BsonElement& e : doc) {
    if (out.size() > kMaxCommandBytes) return;
    if (!std::exchange(first, false)) out += ", ";
    if (!array) out.append(e.name).append(": ");
    const size_t room = kMaxCommandBytes + 16;
    if (e.value.IsDocument()) {
      AppendCut(e.value.Document(), false, out);
    } else if (e.value.Is(BsonType::kArray)) {
      AppendCut(e.value.Document(), true, out);
    } else if (e.value.IsString() && e.value.String().size() > room) {
      out.append(1, '"').append(e.value.String().substr(0, room)).append("...\"");
    } else if (e.value.size() > room) {
      out += std::string(BsonTypeName(e.value.type())) + "(" + std::to_string(e.value.size()) +
             " bytes)";
    } else {
      out += ToRelaxedJson(e.value);
    }
  }
  out += array ? " ]" : " }";
}

/// The statements of an update or delete; empty: the command has none.
std::vector<BsonView> StatementsOf(const FinishedOperation& f, std::string_view* field) {
  *field = f.report.op == "update" ? "updates" : f.report.op == "remove" ? "deletes" : "";
  if (field->empty()) return {};
  Result<std::vector<BsonView>> statements = f.request.Documents(*field);
  return statements ? std::move(statements).value() : std::vector<BsonView>();
}

void AppendCommand(const FinishedOperation& f, BsonBuilder& out) {
  const CommandRequest& req = f.request;
  std::string_view field;
  const std::vector<BsonView> statements = StatementsOf(f, &field);
  // An update or delete of one statement is shown as that statement (manual: "Database Profiler
  // Output").
  if (statements.size() == 1 && statements[0].size() <= kMaxCommandBytes) {
    out.Append("command", statements[0]);
    return;
  }
  size_t bytes = req.body.size();
  if (req.Sequence(field) != nullptr)
    for (BsonView s : statements) bytes += s.size();
  if (bytes <= kMaxCommandBytes && req.Sequence(field) != nullptr) {
    BsonBuilder command = out.OpenDocument("command");
    command.AppendAll(req.body);
    BsonArrayBuilder list = command.OpenArray(field);
    for (BsonView s : statements) list.Append(s);
    return;
  }
  if (req.body.size() <= kMaxCommandBytes) {
    out.Append("command", req.body);
    return;
  }
  // As MongoDB shows it: text, cut; the comment stays findable.
  std::string text;
  AppendCut(req.body, false, text);
  if (text.size() > kMaxCommandBytes) CutAtCharacter(text, kMaxCommandBytes);
  BsonBuilder command = out.OpenDocument("command");
  command.Append("$truncated", text + "...");
  for (const CommandField& f : req.fields)
    if (f.name == "comment" && f.value.size() <= kMaxCommandBytes / 4)
      command.Append("comment", f.value);
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

Result<void> Profiler::Set(std::string_view db, Settings s) {
  std::lock_guard l(mutex_);
  const std::string name(db);
  if (s.level == default_level && s.filter == nullptr) {
    settings_.erase(name);
  } else if (settings_.size() >= kMaxDatabases && !settings_.contains(name)) {
    return Error{ErrorCode::kExceededMemoryLimit,
                 "the profiler has settings of " + std::to_string(kMaxDatabases) +
                     " databases: take some back with {profile: 0, filter: 'unset'}"};
  } else {
    settings_[name] = std::move(s);
  }
  bool any = default_level > 0;
  for (const auto& [name, x] : settings_) any |= x.level > 0 || x.filter != nullptr;
  active_ = any;
  return Ok();
}

Profiler::Verdict Profiler::Judge(const FinishedOperation& f) const {
  Verdict v;
  const std::string_view db = f.request.db;
  const int64_t slow = slow_ms.load(std::memory_order_relaxed);
  const bool is_slow =
      f.micros >= MicrosOf(slow) && Sampled(sample_rate.load(std::memory_order_relaxed));
  v.log = is_slow;
  if (!active()) return v;
  const Settings s = Get(db);
  if (s.filter) {
    const BsonDocument d = Describe(f, f.op.now);
    Operation judging(f.op.clock());
    judging.deadline_micros = f.op.clock().MonotonicMicros() + kMaxFilterMicros;
    EvalContext eval;
    eval.op = &judging;
    auto matched = s.filter->Matches(d.view(), &eval);
    v.log = matched && matched.value();
    v.profile = s.level > 0 && v.log;
  } else {
    v.profile = s.level >= 2 || (s.level == 1 && is_slow);
  }
  // Reads of the profile itself are in it too, as in MongoDB: mongoengine's query counter counts on
  // it.
  if (v.profile && IsConfigOrLocal(db)) v.profile = false;
  return v;
}

BsonDocument Profiler::Describe(const FinishedOperation& f, Instant now) {
  return BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", NewObjectId(f.op.now));
    b.Append("op", f.report.op).Append("ns", NamespaceOf(f));
    AppendCommand(f, b);
    if (!f.report.originating_command.view().empty())
      b.Append("originatingCommand", f.report.originating_command);
    AppendCosts(f, b);
    b.Append("protocol", "op_msg").Append("millis", f.micros / 1000);
    if (!f.report.plan_summary.empty()) b.Append("planSummary", f.report.plan_summary);
    b.Append("ts", now);
    if (f.client != nullptr) {
      b.Append("client", f.client->address);
      if (std::string app = f.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    b.OpenArray("allUsers").Done();
    b.Append("user", "");
  });
}

BsonDocument Profiler::LogAttributes(const FinishedOperation& f) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("type", f.report.op).Append("ns", NamespaceOf(f));
    if (f.client != nullptr) {
      if (std::string app = f.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    AppendCommand(f, b);
    if (!f.report.originating_command.view().empty())
      b.Append("originatingCommand", f.report.originating_command);
    if (!f.report.plan_summary.empty()) b.Append("planSummary", f.report.plan_summary);
    AppendCosts(f, b);
    if (f.client != nullptr) b.Append("remote", f.client->address);
    b.Append("protocol", "op_msg").Append("durationMillis", f.micros / 1000);
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
    definition.ns = JoinNamespace(db, kProfileCollection);
    definition.kind = CollectionKind::kCapped;
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

void Profiler::Write(ServerContext& server, const FinishedOperation& f) {
  if (!server.has_storage()) return;
  BsonDocument doc = Describe(f, server.clock().Now());
  Entry entry{std::string(f.request.db), std::move(doc)};
  {
    std::lock_guard l(mutex_);
    outstanding_ = ++accepted_ - written_;
    if (queue_.size() < kMaxQueue) {
      queue_.push_back(std::move(entry));
      if (std::exchange(write_queue_runs_, true)) return;
      server.workers().Post([this, &server] { WriteQueue(server); });
      return;
    }
  }
  // More comes than the writer can take: who adds to it does the work, as on MongoDB.
  WriteEntry(server, entry);
}

void Profiler::WriteEntry(ServerContext& server, const Entry& entry) {
  const Result<void> done = InsertProfile(server, entry.db, entry.document);
  if (!done)
    server.log().Write(LogSeverity::kWarning, LogComponent::kCommand, 9000101,
                       "Could not write to system.profile", BuildBson([&](BsonBuilder& b) {
                         b.Append("db", entry.db).Append("error", done.error().message);
                       }));
  std::lock_guard l(mutex_);
  outstanding_ = accepted_ - ++written_;
}

void Profiler::WriteQueue(ServerContext& server) {
  for (;;) {
    Entry entry;
    {
      std::lock_guard l(mutex_);
      if (queue_.empty()) {
        write_queue_runs_ = false;
        return;
      }
      entry = std::move(queue_.front());
      queue_.pop_front();
    }
    WriteEntry(server, entry);
  }
}

uint64_t Profiler::Mark() const {
  std::lock_guard l(mutex_);
  return accepted_;
}

bool Profiler::Written(uint64_t mark) const {
  std::lock_guard l(mutex_);
  return written_ >= mark;
}

}  // namespace mayfly
