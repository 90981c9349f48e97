#include "server/dispatch/cursor_manager.h"

#include <algorithm>
#include <cstring>

#include "protocol/micros.h"
#include "security/crypto.h"
#include "security/user_cache.h"
#include "server/base/session_registry.h"
#include "server/dispatch/command.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {

namespace {
Error NotFound(int64_t id) {
  return {ErrorCode::kCursorNotFound, "cursor id " + std::to_string(id) + " not found"};
}

/// What an open cursor takes whatever it reads: itself, its entry here, its executor (measured).
constexpr size_t kCursorBytes = 4096;

/// Takes an entry out of its shard, whose mutex is held; the iterator behind it.
template <class Shard, class Iterator>
Iterator EraseEntry(Shard& s, Iterator entry) {
  if (!entry->second.session.empty()) {
    const auto session = s.sessions.find(entry->second.session);
    if (session != s.sessions.end()) {
      session->second.erase(entry->first);
      if (session->second.empty()) s.sessions.erase(session);
    }
  }
  return s.entries.erase(entry);
}
}  // namespace

size_t ClientCursor::bytes() const {
  return kCursorBytes + originating_command.view().size() + whole_command.view().size() +
         plan_summary.size() + cursor->bytes();
}

BsonDocument OriginatingCommand(BsonView command, const ShownCommand& shown) {
  constexpr uint32_t kMaxField = 1024;
  if (command.size() <= kMaxOriginatingCommand) return BsonDocument(command);
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : command) {
      if (b.size() > kMaxOriginatingCommand) break;
      if (e.value.size() <= kMaxField)
        shown.Append(e, b);
      else
        b.Append(e.name, "(" + std::to_string(e.value.size()) + " bytes left out)");
    }
  });
}

Result<uint64_t> CursorManager::Shard::Random() {
  if (random_left == 0) {
    MAYFLY_TRY(const std::string bytes, RandomBytes(sizeof random));
    std::memcpy(random.data(), bytes.data(), sizeof random);
    random_left = random.size();
  }
  return random[--random_left];
}

CursorManager::CursorManager(const Clock& clock) : clock_(clock) {}

CursorManager::~CursorManager() = default;

Result<int64_t> CursorManager::Register(std::unique_ptr<ClientCursor> cursor) {
  cursor->cursor->Park();
  MAYFLY_TRY(cursor->share, limits_->Take(cursor->user, cursor->address, cursor->bytes(),
                                          cursor->cursor->held_bytes()));
  const size_t index = next_shard_.fetch_add(1, std::memory_order_relaxed) % kShards;
  Shard& s = shards_[index];
  cursor->created = cursor->last_used = clock_.Now();
  cursor->last_used_micros = clock_.MonotonicMicros();
  std::unique_lock l(s.mutex);
  int64_t id;
  do {
    // Without it others could guess the id: then there is no cursor.
    MAYFLY_TRY(const uint64_t random, s.Random());
    id = static_cast<int64_t>((random & 0x7FFFFFFFFFFFFFFFull) / kShards * kShards + index);
  } while (id <= 0 || s.entries.contains(id));
  cursor->id = id;
  Entry made;
  made.db = cursor->db;
  made.collection = cursor->collection;
  made.session = cursor->session;
  made.user = cursor->user;
  made.no_timeout = cursor->no_timeout;
  made.change_stream = cursor->cursor->change_stream();
  const auto entry = s.entries.emplace(id, std::move(made)).first;
  if (!cursor->session.empty()) {
    try {
      s.sessions[cursor->session].insert(id);
    } catch (...) {
      EraseEntry(s, entry);  // without a cursor it would be in use for ever
      throw;
    }
  }
  open_.fetch_add(1, std::memory_order_relaxed);
  total_opened_.fetch_add(1, std::memory_order_relaxed);
  if (cursor->no_timeout) no_timeout_.fetch_add(1, std::memory_order_relaxed);
  // Whoever ends a session says so before closing its cursors.
  const Session* const session = cursor->session_use.get();
  const bool ended = session != nullptr && session->ended();
  entry->second.idle = std::move(cursor);
  l.unlock();
  if (ended) [[unlikely]]
    Kill(id, {}, {});
  return id;
}

Result<CheckedOutCursor> CursorManager::CheckOut(int64_t id, std::string_view db,
                                                 std::string_view collection,
                                                 std::string_view session, std::string_view user,
                                                 Operation& op) {
  Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  auto it = s.entries.find(id);
  if (it == s.entries.end() || it->second.kill) {
    const auto gone = s.gone.find(id);
    if (gone == s.gone.end() || gone->second.db != db || gone->second.collection != collection ||
        gone->second.session != session)
      return NotFound(id);
    Error e{ErrorCode::kQueryPlanKilled, std::move(gone->second.why)};
    s.gone.erase(gone);
    return e;
  }
  Entry& e = it->second;
  if (e.db != db || e.collection != collection)
    return Error{ErrorCode::kUnauthorized, "Requested getMore on namespace '" + std::string(db) +
                                               "." + std::string(collection) +
                                               "', but cursor belongs to a different namespace " +
                                               JoinNamespace(e.db, e.collection)};
  if (e.user != user)
    return Error{ErrorCode::kUnauthorized,
                 "cursor id " + std::to_string(id) + " was not created by the authenticated user"};
  if (e.session != session) {
    const std::string cursor_id = std::to_string(id);
    auto text = [](std::string_view b) {
      return b.empty() ? std::string("none") : UuidToString(b);
    };
    if (e.session.empty())
      return Error{LocationCode(50738), "Cannot run getMore on cursor " + cursor_id +
                                            ", which was not created in a session, in session " +
                                            text(session)};
    if (session.empty())
      return Error{LocationCode(50736), "Cannot run getMore on cursor " + cursor_id +
                                            ", which was created in session " + text(e.session) +
                                            ", without an lsid"};
    return Error{LocationCode(50737), "Cannot run getMore on cursor " + cursor_id +
                                          ", which was created in session " + text(e.session) +
                                          ", in session " + text(session)};
  }
  if (!e.idle)
    return Error{ErrorCode::kCursorInUse, "cursor id " + std::to_string(id) + " is already in use"};
  e.running = &op;
  pinned_.fetch_add(1, std::memory_order_relaxed);
  return CheckedOutCursor(e.idle.release(), DiscardCursor{this});
}

bool CursorManager::CheckIn(CheckedOutCursor cursor) {
  if (cursor->cursor->Exhausted()) return false;
  cursor->cursor->Park();
  cursor->share->Set(cursor->bytes(), cursor->cursor->held_bytes());
  cursor->last_used = clock_.Now();
  cursor->last_used_micros = clock_.MonotonicMicros();
  Shard& s = shard(cursor->id);
  {
    std::lock_guard l(s.mutex);
    auto it = s.entries.find(cursor->id);
    if (it != s.entries.end() && !it->second.kill) {
      pinned_.fetch_sub(1, std::memory_order_relaxed);
      it->second.running = nullptr;
      it->second.idle.reset(cursor.release());
      return true;
    }
  }
  return false;
}

void CursorManager::CountBatch(ClientCursor& cursor) {
  if (++cursor.batches == 2) more_than_one_batch_.fetch_add(1, std::memory_order_relaxed);
}

void CursorManager::Forget(const ClientCursor& cursor) noexcept {
  Shard& s = shard(cursor.id);
  std::lock_guard l(s.mutex);
  const auto entry = s.entries.find(cursor.id);
  if (entry == s.entries.end()) return;
  EraseEntry(s, entry);
  open_.fetch_sub(1, std::memory_order_relaxed);
  pinned_.fetch_sub(1, std::memory_order_relaxed);
  if (cursor.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
}

void DiscardCursor::operator()(ClientCursor* cursor) const noexcept {
  // Outside the lock it dies: closing iterators may take a while.
  const std::unique_ptr<ClientCursor> dead(cursor);
  if (of != nullptr) of->Forget(*cursor);
}

CursorManager::KillResult CursorManager::Kill(int64_t id, std::string_view ns_db,
                                              std::string_view ns_collection,
                                              std::optional<std::string_view> user) {
  std::unique_ptr<ClientCursor> dead;
  Shard& s = shard(id);
  std::unique_lock l(s.mutex);
  auto it = s.entries.find(id);
  if (const auto gone = s.gone.find(id);
      gone != s.gone.end() &&
      (ns_db.empty() || (gone->second.db == ns_db && gone->second.collection == ns_collection))) {
    s.gone.erase(gone);
    return KillResult::kKilled;
  }
  if (it == s.entries.end() || it->second.kill) return KillResult::kNotFound;
  Entry& e = it->second;
  if (!ns_db.empty() && (e.db != ns_db || e.collection != ns_collection))
    return KillResult::kWrongNamespace;
  if (user && e.user != *user) return KillResult::kNotOwner;
  if (!e.idle) {
    e.kill = true;
    const uint64_t op = e.running != nullptr ? e.running->id : 0;
    if (e.running != nullptr) e.running->kill_code = static_cast<int32_t>(ErrorCode::kCursorKilled);
    l.unlock();
    if (op != 0 && kill_operation_) kill_operation_(op);
    return KillResult::kKilled;
  }
  dead = std::move(e.idle);
  if (e.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
  EraseEntry(s, it);
  open_.fetch_sub(1, std::memory_order_relaxed);
  return KillResult::kKilled;
}

namespace {
/// Ends one entry of a shard whose lock is held; the iterator behind it. `dead` and `running` are
/// for afterwards. `on_idle` throws before it counts anything.
template <class Shard, class Iterator, class OnIdle>
Iterator KillEntry(Shard& s, Iterator it, OnIdle& on_idle, ErrorCode code,
                   std::vector<std::unique_ptr<ClientCursor>>* dead,
                   std::vector<uint64_t>* running) {
  auto& e = it->second;
  // What may throw comes first: nothing has happened then.
  if (e.idle) {
    dead->emplace_back();
    on_idle(s, it->first, e);
    dead->back() = std::move(e.idle);
    return EraseEntry(s, it);
  }
  if (e.running) {
    running->push_back(e.running->id);
    e.running->kill_code = static_cast<int32_t>(code);
  }
  e.kill = true;
  return ++it;
}

/// Removes from every shard what `which` picks; what a getMore has is interrupted instead. Closes
/// outside the locks.
template <class Shards, class Which, class OnIdle>
int KillWhere(Shards& shards, const std::function<void(uint64_t)>& kill_operation, Which which,
              OnIdle on_idle, ErrorCode code = ErrorCode::kCursorKilled) {
  int n = 0;
  for (auto& s : shards) {
    std::vector<std::unique_ptr<ClientCursor>> dead;
    std::vector<uint64_t> running;
    std::unique_lock l(s.mutex);
    for (auto it = s.entries.begin(); it != s.entries.end();) {
      auto& e = it->second;
      if (e.kill || !which(e)) {
        ++it;
        continue;
      }
      ++n;
      it = KillEntry(s, it, on_idle, code, &dead, &running);
    }
    l.unlock();
    if (kill_operation)
      for (uint64_t op : running) kill_operation(op);
  }
  return n;
}
}  // namespace

int CursorManager::KillSession(std::string_view session) {
  // Each transaction ends with this, and most have no cursor.
  if (open_.load(std::memory_order_acquire) == 0) return 0;
  const std::string key(session);
  auto count = [&](Shard&, int64_t, const Entry& e) {
    open_.fetch_sub(1, std::memory_order_relaxed);
    if (e.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
  };
  int n = 0;
  for (Shard& s : shards_) {
    std::vector<std::unique_ptr<ClientCursor>> dead;
    std::vector<uint64_t> running;
    {
      std::lock_guard l(s.mutex);
      const auto of_session = s.sessions.find(key);
      if (of_session == s.sessions.end()) continue;
      // Those that a getMore has leave when they come back; the others leave here.
      const std::vector<int64_t> ids(of_session->second.begin(), of_session->second.end());
      for (int64_t id : ids) {
        const auto entry = s.entries.find(id);
        if (entry == s.entries.end() || entry->second.kill) continue;
        ++n;
        KillEntry(s, entry, count, ErrorCode::kCursorKilled, &dead, &running);
      }
    }
    if (kill_operation_)
      for (uint64_t op : running) kill_operation_(op);
  }
  return n;
}

int CursorManager::KillSessions(const std::function<bool(std::string_view)>& of) {
  return KillWhere(
      shards_, kill_operation_, [&](const Entry& e) { return !e.session.empty() && of(e.session); },
      [&](Shard&, int64_t, const Entry& e) {
        open_.fetch_sub(1, std::memory_order_relaxed);
        if (e.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
      });
}

int CursorManager::KillNamespace(std::string_view db, std::string_view collection,
                                 std::string_view why) {
  const int64_t now = clock_.MonotonicMicros();
  return KillWhere(
      shards_, kill_operation_,
      [&](const Entry& e) {
        return !e.change_stream && e.db == db && (collection.empty() || e.collection == collection);
      },
      [&](Shard& s, int64_t id, const Entry& e) {
        if (s.gone.size() < kMaxGone)
          s.gone.insert_or_assign(id, Gone{e.db, e.collection, e.session, std::string(why), now});
        open_.fetch_sub(1, std::memory_order_relaxed);
        if (e.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
      },
      ErrorCode::kQueryPlanKilled);
}

void CursorManager::KillAll() {
  KillWhere(
      shards_, kill_operation_, [](const Entry&) { return true; },
      [&](Shard&, int64_t, const Entry& e) {
        open_.fetch_sub(1, std::memory_order_relaxed);
        if (e.no_timeout) no_timeout_.fetch_sub(1, std::memory_order_relaxed);
      });
}

int CursorManager::Sweep(int64_t timeout_millis) {
  const int64_t limit = clock_.MonotonicMicros() - MicrosOf(timeout_millis);
  // The wall clock too: tests move it, and a cursor is as idle as its user's clock says.
  const int64_t wall_limit = clock_.Now().millis - MicrosOf(timeout_millis) / 1000;
  for (Shard& s : shards_) {
    std::lock_guard l(s.mutex);
    std::erase_if(s.gone, [&](const auto& g) { return g.second.since_micros < limit; });
  }
  int n = KillWhere(
      shards_, kill_operation_,
      [&](const Entry& e) {
        // Cursors of a session live as long as the session.
        return e.idle && !e.no_timeout && e.session.empty() &&
               (e.idle->last_used_micros < limit || e.idle->last_used.millis < wall_limit);
      },
      [&](Shard&, int64_t, const Entry&) { open_.fetch_sub(1, std::memory_order_relaxed); });
  timed_out_.fetch_add(n, std::memory_order_relaxed);
  return n;
}

CursorManager::Totals CursorManager::totals() const {
  auto get = [](const std::atomic<int64_t>& a) { return a.load(std::memory_order_relaxed); };
  return {get(open_),      get(pinned_),       get(no_timeout_),
          get(timed_out_), get(total_opened_), get(more_than_one_batch_)};
}

void CursorManager::ForEachIdle(std::optional<std::string_view> of_user,
                                const std::function<void(const IdleCursor&)>& f) const {
  std::vector<int64_t> ids;
  for (const Shard& s : shards_) {
    ids.clear();
    {
      std::lock_guard l(s.mutex);
      for (const auto& [id, e] : s.entries)
        if (e.idle && (!of_user || e.user == *of_user)) ids.push_back(id);
    }
    for (const int64_t id : ids) {
      IdleCursor copy;
      {
        std::lock_guard l(s.mutex);
        const auto it = s.entries.find(id);
        if (it == s.entries.end() || !it->second.idle) continue;
        const ClientCursor& c = *it->second.idle;
        copy = {c.id,
                c.ns,
                c.session,
                c.plan_summary,
                it->second.user,
                BsonDocument(c.originating_command.view()),
                c.reads_credentials,
                c.batches,
                c.documents_returned,
                c.created,
                c.last_used,
                c.no_timeout,
                c.cursor->tailable(),
                c.cursor->await_data()};
      }
      f(copy);
    }
  }
}

std::unique_ptr<ClientCursor> MakeClientCursor(const CommandContext& ctx, const CommandRequest& req,
                                               std::string_view ns) {
  auto client = std::make_unique<ClientCursor>();
  client->ns = ns;
  client->db = req.db;
  client->collection = ns.substr(req.db.size() + 1);
  // `ns` is of the collection that was found, also by its UUID.
  const ShownCommand shown(req.body,
                           {.sequences = &req.sequences, .of_users = NamesUsersCollection(ns)});
  client->reads_credentials =
      shown.of_users() || ctx.op.reads_credentials.load(std::memory_order_relaxed);
  client->originating_command = OriginatingCommand(req.body, shown);
  if (ctx.session) {
    client->session = ctx.session->id();
    client->session_use = SessionUse(ctx.session->shared_from_this());
  }
  // As the getMores of a transaction look for it: server/execution/transactions.h.
  if (ctx.op.view != nullptr && ctx.op.view->has_own_writes())
    client->session.append("/").append(std::to_string(req.generic.txn_number.value_or(0)));
  if (ctx.access != nullptr) {
    client->user = ctx.access->user.name.Id();
    client->access_generation = ctx.access->generation;
    if (req.body.size() > kMaxOriginatingCommand) client->whole_command = BsonDocument(req.body);
  }
  if (ctx.client != nullptr) client->address = ctx.client->address;
  return client;
}

Result<void> CheckNeedsOfUuid(const CommandContext& ctx, const NeedsOfUuid& needs,
                              std::string_view db) {
  if (ctx.access == nullptr || needs.actions.empty() ||
      ctx.access->privileges.Allows(db, needs.collection, needs.actions))
    return Ok();
  return Error{ErrorCode::kUnauthorized,
               "not authorized on " + std::string(db) +
                   " to use the collection that the command names by its UUID"};
}

Result<int64_t> ReplyFirstBatch(CursorManager& cursors, Operation& op,
                                std::unique_ptr<ClientCursor> cursor, int64_t batch_size,
                                BsonBuilder& reply) {
  const std::string ns = cursor->ns;
  std::unique_ptr<ServerCursor> source = std::move(cursor->cursor);
  return ReplyFirstBatch(
      cursors, op, std::move(source), ns, batch_size, cursor->single_batch,
      [&] { return std::move(cursor); }, reply);
}

Result<int64_t> ReplyFirstBatch(CursorManager& cursors, Operation& op,
                                std::unique_ptr<ServerCursor> source, std::string_view ns,
                                int64_t batch_size, bool single_batch,
                                const std::function<std::unique_ptr<ClientCursor>()>& make_client,
                                BsonBuilder& reply) {
  BsonBuilder out = reply.OpenDocument("cursor");
  BsonArrayBuilder batch = out.OpenArray("firstBatch");
  if (batch_size > 0) {
    MAYFLY_TRY(source->NextBatch(op, batch_size, kMaxBatchBytes, batch));
  }
  const int64_t n = batch.count();
  batch.Done();
  op.n_returned = n;
  int64_t id = 0;
  source->AppendPosition(out);
  if (op.read_ts != 0) out.AppendTimestamp("atClusterTime", op.read_ts);
  if (!single_batch && !source->Exhausted()) {
    std::unique_ptr<ClientCursor> cursor = make_client();
    cursor->cursor = std::move(source);
    if (op.view != nullptr) cursor->point = op.view->point();
    cursor->documents_returned = n;
    if (op.deadline_micros > 0 && !cursor->cursor->tailable())
      cursor->time_left_micros =
          std::max<int64_t>(1, op.deadline_micros - op.clock().MonotonicMicros());
    cursor->batches = 1;
    MAYFLY_TRY(id, cursors.Register(std::move(cursor)));
  }
  out.Append("id", id).Append("ns", ns);
  out.Done();
  return id;
}

void ReportCursor(CommandContext& ctx, int64_t id) {
  ctx.EditReport([&](OperationReport& r) {
    r.cursor_id = id;
    r.cursor_exhausted = id == 0;
  });
}

Result<void> ListCursor::NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                                   BsonArrayBuilder& batch) {
  for (int64_t n = 0; n < batch_size && next_ < documents_.size(); ++next_) {
    const BsonView doc = documents_[next_].view();
    if (batch.count() > 0 && batch.size() + doc.size() + 16 > max_bytes) break;
    MAYFLY_TRY(op.CheckInterrupt());
    if (shown_ && !shown_(op, doc)) continue;
    batch.Append(doc);
    ++n;
  }
  return Ok();
}

}  // namespace mayfly
