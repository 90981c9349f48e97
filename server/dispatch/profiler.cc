#include "server/dispatch/profiler.h"

#include <algorithm>
#include <optional>

#include "protocol/cut_text.h"
#include "protocol/database_name.h"
#include "protocol/extended_json.h"
#include "protocol/micros.h"
#include "protocol/object_id.h"
#include "protocol/system_names.h"
#include "security/user_cache.h"
#include "server/dispatch/redacted_command.h"
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

std::string ProfiledNamespace(const FinishedOperation& f) {
  const CommandRequest& req = f.request;
  if (!f.report.ns.empty()) return f.report.ns;
  std::string ns(req.db);
  const BsonValue first = req.fields.empty() ? BsonValue() : req.fields[0].value;
  // A client's collection name may be as long as a message.
  ns.append(1, '.').append(first.IsString() ? ShownText(first.String(), kMaxNamespace) : "$cmd");
  return ns;
}

/// Whether it reads the log of the set, in which the credentials of users are, too.
bool ReadsLog(const CommandRequest& req) {
  if (!IsConfigOrLocal(req.db) || req.fields.empty()) return false;
  BsonValue named = req.name == "getMore" ? req.body["collection"] : req.fields[0].value;
  if (named.IsDocument()) named = named.Document().First().value;  // explain
  if (!named.IsString()) return false;
  return HoldsCredentials(req.db, named.String());  // check_names: compared
}

/// What may be shown of its command. The report's namespace is of the collection that was found,
/// by whatever name.
ShownCommand ShownOf(const FinishedOperation& f) {
  CommandLook look;
  look.sequences = &f.request.sequences;
  std::vector<Uuid> uuids;
  if (f.server != nullptr && f.server->has_storage()) {
    uuids = CredentialUuids(f.server->storage().catalog());
    look.uuids = uuids;
  }
  look.of_users =
      f.op.reads_credentials.load(std::memory_order_relaxed) || NamesUsersCollection(f.report.ns);
  return ShownCommand(f.request.body, look);
}

/// The fields that the profiler's document and the log's line share. `shown`: of the command, whose
/// error's message may have a secret in it.
void AppendOperationCosts(const FinishedOperation& f, const ShownCommand& shown, BsonBuilder& out) {
  const Operation& op = f.op;
  const OperationReport& r = f.report;
  const Error* error = f.error;
  if (r.cursor_id != 0) out.Append("cursorid", r.cursor_id);
  if (op.keys_examined || op.docs_examined || !r.plan_summary.empty())
    out.Append("keysExamined", op.keys_examined).Append("docsExamined", op.docs_examined);
  if (op.has_sort_stage) out.Append("hasSortStage", true);
  if (op.used_disk) out.Append("usedDisk", true);
  if (op.from_multi_planner) out.Append("fromMultiPlanner", true);
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
  // For a write, documents found by its search were not returned.
  const bool write = r.op == "update" || r.op == "remove";
  if ((op.n_returned && !write) || r.op == "query" || r.op == "getmore")
    out.Append("nreturned", op.n_returned);
  if (error != nullptr) {
    out.Append("ok", 0.0);
    std::string_view message = shown.Message(f.request.body, *error);
    // A getMore names nothing; what its cursor came from may.
    if (const BsonView from = r.originating_command.view(); !from.empty() && message != kRedacted)
      message = shown.Message(from, *error);
    out.Append("errMsg", ReadsLog(f.request) ? kRedacted : message);
    out.Append("errName", ErrorCodeName(error->code))
        .Append("errCode", static_cast<int32_t>(error->code));
  }
  out.Append("responseLength", f.reply_bytes);
}

/// The document as text, as far as kMaxCommandBytes reach: what is behind that is not looked at.
void AppendCutText(BsonView doc, bool array, std::string& out) {
  out += array ? "[ " : "{ ";
  bool first = true;
  for (const BsonElement& e : doc) {
    if (out.size() > kMaxCommandBytes) return;
    if (!std::exchange(first, false)) out += ", ";
    if (!array) out.append(e.name).append(": ");
    const size_t room = kMaxCommandBytes + 16;
    if (IsHiddenAsText(e)) {
      out.append(1, '"').append(kRedacted).append(1, '"');
    } else if (e.value.IsDocument()) {
      AppendCutText(e.value.Document(), false, out);
    } else if (e.value.Is(BsonType::kArray)) {
      AppendCutText(e.value.Document(), true, out);
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
DocumentList StatementsOf(const FinishedOperation& f, std::string_view* field) {
  *field = f.report.op == "update" ? "updates" : f.report.op == "remove" ? "deletes" : "";
  if (field->empty()) return {};
  Result<DocumentList> statements = f.request.Documents(*field);
  return statements ? std::move(statements).value() : DocumentList();
}

/// The command's own fields without its secrets, and its statements behind them.
void AppendWhole(const ShownCommand& shown, BsonView body, std::string_view field,
                 const DocumentList& statements, BsonBuilder& out) {
  BsonBuilder command = out.OpenDocument("command");
  for (const BsonElement& e : body) {
    if (command.size() > kMaxCommandBytes) break;
    shown.Append(e, command);
  }
  if (field.empty()) return;
  BsonArrayBuilder list = command.OpenArray(field);
  for (BsonView s : statements) shown.AppendDocument(field, s, list);
}

void AppendProfiledCommand(const FinishedOperation& f, const ShownCommand& shown,
                           BsonBuilder& out) {
  const CommandRequest& req = f.request;
  // Little is left of it.
  if (shown.of_users()) return AppendWhole(shown, req.body, {}, {}, out);
  std::string_view field;
  const DocumentList statements = StatementsOf(f, &field);
  // An update or delete of one statement is shown as that statement (manual: "Database Profiler
  // Output").
  if (statements.size() == 1 && statements[0].size() <= kMaxCommandBytes) {
    out.Append("command", RedactedCommand(statements[0]));
    return;
  }
  size_t bytes = req.body.size();
  if (req.Sequence(field) != nullptr)
    for (BsonView s : statements) bytes += s.size();
  if (bytes <= kMaxCommandBytes && req.Sequence(field) != nullptr)
    return AppendWhole(shown, req.body, field, statements, out);
  if (req.body.size() <= kMaxCommandBytes) return AppendWhole(shown, req.body, {}, {}, out);
  // As MongoDB shows it: text, cut; the comment stays findable.
  std::string text;
  if (shown.takes_secrets())
    text.append("{ ").append(req.name).append(": ").append(kRedacted);
  else
    AppendCutText(req.body, false, text);
  text.resize(CutUtf8(text, kMaxCommandBytes).size());
  BsonBuilder command = out.OpenDocument("command");
  command.Append("$truncated", text + "...");
  for (const CommandField& f : req.fields)
    if (f.name == "comment" && f.value.size() <= kMaxCommandBytes / 4)
      shown.Append({f.name, f.value}, command);
  command.Done();
}

/// The command that a getMore goes on with.
void AppendOriginating(const FinishedOperation& f, bool of_users, BsonBuilder& out) {
  CommandLook look;
  look.of_users = of_users;
  if (!f.report.originating_command.view().empty())
    out.Append("originatingCommand", RedactedCommand(f.report.originating_command, look));
}

/// Who has logged in on the connection, and who ran it (manual: "Database Profiler Output"): here
/// at most one user. A client may log in while access control is off, too.
void AppendWhoRan(const FinishedOperation& f, BsonBuilder& out) {
  std::optional<UserName> user;
  if (f.op.user() != nullptr)
    user = f.op.user()->user.name;
  else if (f.client != nullptr)
    user = f.client->user();
  else if (f.user != nullptr)
    user = *f.user;
  const bool known = user && !user->user.empty();
  {
    BsonArrayBuilder all = out.OpenArray("allUsers");
    if (known) all.OpenDocument().Append("user", user->user).Append("db", user->db);
  }
  out.Append("user", known ? user->Shown() : std::string());
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
    const BsonDocument d = Describe(f, f.op.clock().Now());
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
  const ShownCommand shown = ShownOf(f);
  return BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", NewObjectId(now));  // the operation may read by an older clock
    b.Append("op", f.report.op).Append("ns", ProfiledNamespace(f));
    AppendProfiledCommand(f, shown, b);
    AppendOriginating(f, shown.of_users(), b);
    AppendOperationCosts(f, shown, b);
    b.Append("protocol", "op_msg").Append("millis", f.micros / 1000);
    if (!f.report.plan_summary.empty()) b.Append("planSummary", f.report.plan_summary);
    b.Append("ts", now);
    if (f.client != nullptr) {
      b.Append("client", f.client->address);
      if (std::string app = f.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    AppendWhoRan(f, b);
  });
}

BsonDocument Profiler::LogAttributes(const FinishedOperation& f) {
  const ShownCommand shown = ShownOf(f);
  return BuildBson([&](BsonBuilder& b) {
    b.Append("type", f.report.op).Append("ns", ProfiledNamespace(f));
    if (f.client != nullptr) {
      if (std::string app = f.client->app_name(); !app.empty()) b.Append("appName", app);
    }
    AppendProfiledCommand(f, shown, b);
    AppendOriginating(f, shown.of_users(), b);
    if (!f.report.plan_summary.empty()) b.Append("planSummary", f.report.plan_summary);
    AppendOperationCosts(f, shown, b);
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
  // Entries come faster than the writer takes them: their senders do the work, as on MongoDB.
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
