#include "server/execution/current_op.h"

#include <optional>
#include <unordered_map>

#include "protocol/cut_text.h"
#include "protocol/extended_json.h"
#include "security/user_cache.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/session_store.h"
#include "server/execution/transactions.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

constexpr uint32_t kTruncateAt = 1000;
/// If a longer command must be cut, only its first fields are looked at: up to kMaxCopied bytes,
/// and kMaxCommentFields fields for its comment.
constexpr size_t kMaxCopied = 4 * 1024;
constexpr int kMaxCommentFields = 100;
/// With whole commands asked for: when those so far, of operations and of idle cursors, have this
/// many bytes, the others are cut all the same.
constexpr size_t kMaxWholeCommands = size_t{32} << 20;

/// The data to show for a client, copied while it is locked: its io thread waits meanwhile, so
/// nothing is rendered there.
struct Taken {
  std::string desc, address, app_name, session, db;
  int64_t connection_id = 0, start_micros = 0;
  uint64_t op_id = 0;
  bool active = false, kill_pending = false, waits_for_lock = false;
  bool cut = false;        ///< the command is shown as text
  bool whole = true;       ///< `command` has all of its fields
  size_t whole_bytes = 0;  ///< of a command that `command` has only the first fields of; else 0
  BsonDocument metadata, command, comment;
  std::string name, collection;  ///< of the command, and the value of its first field if a string
  std::string_view op = "none";
  std::string ns, plan_summary;
  std::string_view progress;
  int64_t progress_done = 0, progress_total = 0;
  BsonDocument originating;        ///< the command that a getMore goes on with
  bool reads_credentials = false;  ///< Operation::reads_credentials
  std::optional<UserName> user;
};

/// The replacement for a long command.
void AppendCutCommand(BsonView command, BsonBuilder& b) {
  b.Append("$truncated", std::to_string(command.size()) + " bytes of " +
                             std::string(command.First().name.substr(0, kTruncateAt)));
}

/// With a long command cut to kTruncateAt letters, if `truncate` says so.
Taken Take(const ClientSlot::View& v, bool truncate) {
  Taken t;
  t.desc = v.slot.desc;
  t.address = v.slot.address;
  t.app_name = v.app_name;
  t.connection_id = v.slot.connection_id;
  if (v.user != nullptr) t.user = *v.user;
  if (!v.metadata.empty()) t.metadata = BsonDocument(v.metadata);
  t.active = v.op != nullptr;
  if (!t.active) return t;
  t.op_id = v.op->id;
  t.session = v.session;
  t.db = v.db;
  t.start_micros = v.start_micros;
  t.kill_pending = v.kill_pending;
  t.reads_credentials = v.op->reads_credentials.load(std::memory_order_relaxed);
  t.waits_for_lock = v.op->waits_for_lock.load(std::memory_order_relaxed);
  if (const OperationReport* r = v.report; r != nullptr) {
    t.op = r->op;
    t.ns = r->ns;
    t.plan_summary = r->plan_summary.substr(0, kMaxCopied);
    t.progress = r->progress;
    t.progress_done = r->progress_done;
    t.progress_total = r->progress_total;
    const BsonView from = r->originating_command.view();
    if (!truncate || from.size() <= kMaxCopied)
      t.originating = BsonDocument(from);
    else
      t.originating = BuildBson([&](BsonBuilder& b) { AppendCutCommand(from, b); });
  }
  t.cut = truncate && v.command.size() > kTruncateAt;
  const BsonElement first = v.command.First();
  t.name = first.name.substr(0, kTruncateAt);
  if (first.value.IsString() && first.value.size() <= kTruncateAt)
    // check_names: only a string value of the reply is made of it
    t.collection = first.value.String();
  if (!t.cut || v.command.size() <= kMaxCopied)
    t.command = BsonDocument(v.command);
  else
    t.whole_bytes = v.command.size();
  // Its namespaces may be beside the body, which is all that is registered.
  t.whole = t.whole_bytes == 0 && t.name != "bulkWrite";
  if (!t.cut) return t;
  int fields = 0;
  BsonDocument front = BuildBson([&](BsonBuilder& b) {
    size_t bytes = 0;
    for (const BsonElement& e : v.command) {
      if (++fields > kMaxCommentFields) break;
      if (e.name == "comment" && e.value.size() <= kTruncateAt)
        t.comment = BuildBson([&](BsonBuilder& c) { c.Append("comment", e.value); });
      if (bytes <= kMaxCopied) bytes += e.name.size() + e.value.size() + 2;
      if (bytes <= kMaxCopied) b.Append(e.name, e.value);
    }
  });
  if (t.whole_bytes != 0) t.command = std::move(front);
  return t;
}

void AppendTakenCommand(const Taken& t, BsonBuilder& b) {
  if (!t.cut) {
    b.Append("command", t.command);
    return;
  }
  std::string text = ToRelaxedJson(t.command);
  if (t.whole_bytes != 0 && text.size() < kTruncateAt)
    text = std::to_string(t.whole_bytes) + " bytes of " + t.name + ", beginning with " + text;
  text.resize(CutUtf8(text, kTruncateAt).size());
  BsonBuilder c = b.OpenDocument("command");
  c.Append("$truncated", text);
  if (!t.comment.view().empty()) c.AppendAll(t.comment.view());
}

void AppendSession(std::string_view name, std::string_view id, BsonBuilder& b) {
  if (id.empty()) return;
  BsonBuilder lsid = b.OpenDocument(name);
  AppendSessionId(lsid, id);
}

void AppendClient(const Taken& t, BsonBuilder& b) {
  if (t.connection_id == 0) return;
  b.Append("connectionId", t.connection_id).Append("client", t.address);
  if (!t.app_name.empty()) b.Append("appName", t.app_name);
  if (!t.metadata.view().empty()) b.Append("clientMetadata", t.metadata);
}

void AppendUsers(const std::optional<UserName>& who, BsonBuilder& b) {
  BsonArrayBuilder users = b.OpenArray("effectiveUsers");
  if (!who) return;
  BsonBuilder user = users.OpenDocument();
  AppendUserName(user, *who);
}

void AppendTransaction(const TransactionView& v, BsonBuilder& b) {
  BsonBuilder d = b.OpenDocument("transaction");
  v.Append(d);
}

void AppendLocks(bool waits, BsonBuilder& b) {
  b.OpenDocument("locks").Done();
  b.Append("waitingForLock", waits);
  b.OpenDocument("lockStats").Done();
  b.Append("waitingForFlowControl", false);
  b.OpenDocument("flowControlStats").Done();
}

void AppendProgress(std::string_view what, int64_t done, int64_t total, BsonBuilder& b) {
  const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  b.Append("msg", std::string(what) + ": " + std::to_string(static_cast<int>(part * 100)) + "%");
  BsonBuilder p = b.OpenDocument("progress");
  p.Append("done", done).Append("total", total);
}

/// `transaction`: that it is a command of; null for none.
void AppendOperation(std::string_view host, std::string_view now_text, int64_t now_micros,
                     const std::vector<Catalog::BuildProgress>& builds, const Taken& t,
                     const TransactionView* transaction, BsonBuilder& b) {
  b.Append("type", "op").Append("host", host).Append("desc", t.desc);
  AppendClient(t, b);
  b.Append("active", t.active).Append("currentOpTime", now_text);
  AppendUsers(t.user, b);
  if (!t.active) return;
  b.Append("threaded", true).Append("opid", static_cast<int64_t>(t.op_id));
  AppendSession("lsid", t.session, b);
  if (transaction != nullptr) AppendTransaction(*transaction, b);
  const int64_t micros = now_micros - t.start_micros;
  b.Append("secs_running", micros / 1'000'000).Append("microsecs_running", micros);
  b.Append("op", t.op);
  std::string ns = t.ns;
  if (ns.empty() && !t.db.empty())
    ns.append(t.db).append(1, '.').append(t.collection.empty() ? "$cmd" : t.collection);
  b.Append("ns", ns).Append("redacted", false);
  AppendTakenCommand(t, b);
  if (!t.originating.view().empty()) b.Append("originatingCommand", t.originating);
  if (!t.plan_summary.empty()) b.Append("planSummary", t.plan_summary);
  for (const Catalog::BuildProgress& build : builds)
    if (build.op_id == t.op_id && build.op_id != 0)
      AppendProgress("Index Build", build.done, build.total, b);
  if (!t.progress.empty()) AppendProgress(t.progress, t.progress_done, t.progress_total, b);
  if (t.kill_pending) b.Append("killPending", true);
  b.Append("numYields", int64_t{0});
  AppendLocks(t.waits_for_lock, b);
}

/// A transaction that waits for its client. `of`: the connection that it was used by last; null if
/// that is gone, or is no more of whom it is shown to.
void AppendIdleTransaction(std::string_view host, std::string_view now_text,
                           const TransactionView& v, const Taken* of, BsonBuilder& b) {
  b.Append("type", "idleSession").Append("host", host).Append("desc", "inactive transaction");
  if (of != nullptr) AppendClient(*of, b);
  b.Append("active", false).Append("currentOpTime", now_text);
  AppendUsers(v.user, b);
  AppendSession("lsid", v.session, b);
  AppendTransaction(v, b);
  AppendLocks(/*waits=*/false, b);
}

/// Without secrets: what may be shown of it, by all that is known of it.
void Redact(std::span<const Uuid> uuids, Taken& t) {
  CommandLook look{.uuids = uuids, .whole = t.whole};
  look.of_users = NamesUsersCollection(t.ns) || t.reads_credentials;
  const ShownCommand shown(t.command, look);
  look.of_users = shown.of_users();
  t.command = RedactedCommand(t.command, shown);
  t.comment = RedactedCommand(t.comment, look);
  t.originating = RedactedCommand(t.originating, look);
}

/// `cut`: of its command only the size and the name are shown.
void AppendIdleCursor(std::string_view host, const IdleCursor& c, bool cut, BsonBuilder& b) {
  b.Append("type", "idleCursor").Append("host", host).Append("ns", c.ns);
  if (const size_t dot = c.user.find('.'); dot != std::string::npos) {
    BsonArrayBuilder users = b.OpenArray("effectiveUsers");
    BsonBuilder user = users.OpenDocument();
    AppendUserName(user, {.user = c.user.substr(dot + 1), .db = c.user.substr(0, dot)});
  }
  AppendSession("lsid", c.session, b);
  if (!c.plan_summary.empty()) b.Append("planSummary", c.plan_summary);
  BsonBuilder d = b.OpenDocument("cursor");
  d.Append("cursorId", c.id).Append("createdDate", c.created).Append("lastAccessDate", c.last_used);
  d.Append("nDocsReturned", c.documents_returned).Append("nBatchesReturned", c.batches);
  d.Append("noCursorTimeout", c.no_timeout).Append("tailable", c.tailable);
  d.Append("awaitData", c.await_data);
  if (cut) {
    BsonBuilder command = d.OpenDocument("originatingCommand");
    AppendCutCommand(c.originating_command.view(), command);
  } else {
    const CommandLook look{.of_users = c.reads_credentials || NamesUsersCollection(c.ns)};
    d.Append("originatingCommand", RedactedCommand(c.originating_command, look));
  }
  d.Append("operationUsingCursorId", int64_t{0});
}

/// Whether it belongs to whoever asks. It is of the user whose session it is: on the connection
/// that it was used by last somebody else may have logged in.
bool IsOwn(const Asker& asker, const TransactionView& v) {
  if (!asker.access_control)
    return asker.connection_id != 0 && v.connection_id == asker.connection_id;
  return v.user && *v.user == asker.user;
}

/// The open transactions of a moment, and the clients that have used them last.
class TransactionsNow {
 public:
  explicit TransactionsNow(ServerContext& server) : server_(server) {
    if (Transactions* all = TransactionsOf(server)) list_ = all->List();
    for (const TransactionView& v : list_) {
      if (v.running_op != 0)
        by_op_[v.running_op] = &v;
      else
        used_by_[v.connection_id];
    }
  }
  const TransactionView* Of(uint64_t op_id) const {
    auto it = by_op_.find(op_id);
    return it == by_op_.end() ? nullptr : it->second;
  }
  /// Whether an idle one was used by this connection last.
  bool UsedBy(int64_t connection_id) const { return used_by_.contains(connection_id); }
  void Meet(Taken client) {
    const int64_t id = client.connection_id;
    used_by_[id] = std::move(client);
  }
  void AppendIdle(const Asker& asker, const CurrentOpOptions& options, std::string_view now_text,
                  std::vector<BsonDocument>* out) const {
    for (const TransactionView& v : list_) {
      if (v.running_op != 0) continue;
      if (options.own_only && !IsOwn(asker, v)) continue;
      const std::optional<Taken>& of = used_by_.at(v.connection_id);
      out->push_back(BuildBson([&](BsonBuilder& b) {
        AppendIdleTransaction(server_.host_and_port(), now_text, v, of ? &*of : nullptr, b);
      }));
    }
  }

 private:
  ServerContext& server_;
  std::vector<TransactionView> list_;
  std::unordered_map<uint64_t, const TransactionView*> by_op_;
  std::unordered_map<int64_t, std::optional<Taken>> used_by_;
};

bool IsOwn(const Asker& asker, const ClientSlot::View& v) {
  if (!asker.access_control)
    return asker.connection_id != 0 && v.slot.connection_id == asker.connection_id;
  return v.user != nullptr && *v.user == asker.user;
}

}  // namespace

Asker AskerOf(ServerContext& server, const Operation& op) {
  Asker asker{.access_control = server.access().enforced(), .user = {}};
  if (op.user() != nullptr) asker.user = op.user()->user.name;
  return asker;
}

std::vector<BsonDocument> CollectOperations(ServerContext& server, const Asker& asker,
                                            const CurrentOpOptions& options) {
  std::vector<BsonDocument> out;
  size_t whole = 0;
  const int64_t now_micros = server.clock().MonotonicMicros();
  const Instant now = server.clock().Now();
  const std::string now_text = FormatTimestamp(now, TimestampFormat::kIso8601Local);
  std::vector<Catalog::BuildProgress> builds;
  std::vector<Uuid> uuids;
  if (server.has_storage()) {
    builds = server.storage().catalog().Builds();
    uuids = CredentialUuids(server.storage().catalog());
  }

  // First: what has begun or ended meanwhile is shown as an operation without one.
  TransactionsNow transactions(server);
  // The registry is locked while it is gone through, and connections that come and go wait for it.
  std::vector<Taken> taken;
  server.operations().ForEach([&](const ClientSlot::View& v) {
    const bool own = !options.own_only || IsOwn(asker, v);
    if (own && transactions.UsedBy(v.slot.connection_id)) transactions.Meet(Take(v, true));
    if (v.op == nullptr && !options.idle_connections) return;
    if (!own) return;
    whole += v.command.size();
    if (v.report != nullptr) whole += v.report->originating_command.view().size();
    taken.push_back(Take(v, options.truncate || whole > kMaxWholeCommands));
  });
  for (Taken& t : taken) {
    Redact(uuids, t);
    out.push_back(BuildBson([&](BsonBuilder& b) {
      AppendOperation(server.host_and_port(), now_text, now_micros, builds, t,
                      t.active ? transactions.Of(t.op_id) : nullptr, b);
    }));
  }
  if (options.idle_sessions) transactions.AppendIdle(asker, options, now_text, &out);

  // Builds that nobody waits for any more: resumed at start-up.
  for (const Catalog::BuildProgress& build : builds) {
    if (build.op_id != 0 || options.own_only) continue;
    out.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("type", "op")
          .Append("host", server.host_and_port())
          .Append("desc", "IndexBuildsCoordinatorMongod");
      b.Append("active", true)
          .Append("currentOpTime", now_text)
          .Append("op", "command")
          .Append("ns", build.ns);
      {
        BsonBuilder c = b.OpenDocument("command");
        BsonArrayBuilder names = c.OpenArray("createIndexes");
        for (const std::string& n : build.indexes) names.Append(n);
      }
      AppendProgress("Index Build", build.done, build.total, b);
    }));
  }

  if (options.idle_cursors) {
    std::string own;
    if (options.own_only && asker.access_control) own = asker.user.Id();
    const auto of_user = options.own_only ? std::optional<std::string_view>(own) : std::nullopt;
    server.cursors().ForEachIdle(of_user, [&](const IdleCursor& c) {
      const size_t size = c.originating_command.view().size();
      whole += size;
      const bool cut = size > kTruncateAt && (options.truncate || whole > kMaxWholeCommands);
      out.push_back(
          BuildBson([&](BsonBuilder& b) { AppendIdleCursor(server.host_and_port(), c, cut, b); }));
    });
  }
  return out;
}

}  // namespace mayfly
