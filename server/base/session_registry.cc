#include "server/base/session_registry.h"

#include <algorithm>
#include <list>

#include "protocol/fair_share.h"
#include "protocol/hex.h"
#include "protocol/seeded_hash.h"
#include "security/crypto.h"
#include "server/base/client_of.h"

namespace mayfly {

Result<std::string> NewUuidBytes() {
  MAYFLY_TRY(std::string b, RandomBytes(16));
  b[6] = static_cast<char>((b[6] & 0x0F) | 0x40);
  b[8] = static_cast<char>((b[8] & 0x3F) | 0x80);
  return b;
}

std::string UuidToString(std::string_view b) {
  std::string s;
  b = SessionUuid(b);
  for (size_t i = 0; i < b.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) s.push_back('-');
    AppendHexDigits(b.substr(i, 1), s);
  }
  return s;
}

namespace {

/// The sessions of one owner (OwnerOf): those that were looked at last are the last. A session
/// takes itself out when it dies, which is under the lock: what is in there lives.
struct ClientSessions {
  std::list<Session*> all;
  bool all_in_use = false;  ///< as it was found last
};
/// Sessions, for the one that was not used for the longest.
constexpr int kLookedAt = 64;
/// Sessions in use that are passed over for these. One owner can hardly have more: they have a
/// cursor (CursorLimits), a transaction or a command that runs. While all were found to be in use,
/// each further session looks at as many as the second number.
constexpr int kPassedOver = 40'000, kPassedOverAgain = 1024;
/// How often another one is tried, when somebody begins to use the one that was to end.
constexpr int kRounds = 16;

/// The one of these that is to end, the others moved to the end of the list; null: none that was
/// looked at may end.
Session* LeastUsed(ClientSessions& of) {
  Session* found = nullptr;
  int unused = 0;
  int left = of.all_in_use ? kPassedOverAgain : kPassedOver;
  for (size_t n = of.all.size(); n > 0 && unused < kLookedAt && left > 0; --n) {
    Session* const s = of.all.front();
    of.all.splice(of.all.end(), of.all, of.all.begin());
    if (s->busy() || s->in_use()) {
      --left;
      continue;
    }
    ++unused;
    if (found == nullptr || s->last_use().millis < found->last_use().millis) found = s;
  }
  of.all_in_use = found == nullptr;
  return found;
}

}  // namespace

struct SessionRegistry::Clients {
  std::mutex mutex;
  ClientStringMap<ClientSessions> sessions;
};

SessionRegistry::SessionRegistry() : clients_(std::make_shared<Clients>()) {}

Result<void> SessionRegistry::MakeRoomFor(const std::string& owner) {
  for (int round = 0; round < kRounds; ++round) {
    SessionPtr least_used;  // goes without the lock
    int64_t seen = 0;
    {
      std::lock_guard l(clients_->mutex);
      const auto of = clients_->sessions.find(owner);
      if (of == clients_->sessions.end() ||
          FitsFairShare(static_cast<int64_t>(of->second.all.size()) + 1, count_ + 1,
                        static_cast<int64_t>(kMaxSessions), kMaxClientSessions, false))
        return Ok();
      Session* const found = LeastUsed(of->second);
      if (found == nullptr) break;
      seen = found->last_use().millis;
      least_used = found->weak_from_this().lock();  // null: it is about to go by itself
    }
    // Whoever needs it again starts a new one; it is its own.
    if (least_used && EndUnused(least_used->id(), seen, least_used.get())) return Ok();
  }
  return Error{
      ErrorCode::kTooManyLogicalSessions,
      "cannot add session into the cache: too many logical sessions of this user, and they "
      "have open cursors or transactions: end some of them (killCursors, endSessions)"};
}

std::shared_ptr<void> SessionRegistry::TakeShare(std::string owner, Session* session) {
  std::list<Session*>::iterator place;
  {
    std::lock_guard l(clients_->mutex);
    ClientSessions& of = clients_->sessions[owner];
    place = of.all.insert(of.all.end(), session);
  }
  const auto give_back = [place](Clients& clients, const std::string& of) {
    std::lock_guard l(clients.mutex);
    const auto c = clients.sessions.find(of);
    if (c == clients.sessions.end()) return;
    c->second.all.erase(place);
    if (c->second.all.empty()) clients.sessions.erase(c);
  };
  // What it throws, it has called the deleter for.
  return std::shared_ptr<void>(nullptr, [clients = clients_, owner = std::move(owner),
                                         give_back](void*) { give_back(*clients, owner); });
}

Result<SessionPtr> SessionRegistry::Use(std::string_view id, Instant now,
                                        std::string_view address) {
  if (SessionPtr known = Find(id)) {
    known->Touch(now);
    // It may have ended in the same moment.
    if (!known->ended()) [[likely]]
      return known;
  }
  const SessionPtr fresh = std::make_shared<Session>(std::string(id));
  if (!address.empty()) {
    std::string owner = OwnerOf(SessionUid(id), address);
    MAYFLY_TRY(MakeRoomFor(owner));
    fresh->Touch(now);
    fresh->share_ = TakeShare(std::move(owner), fresh.get());
  }
  if (count_.load(std::memory_order_relaxed) >= static_cast<int64_t>(kMaxSessions))
    return Error{ErrorCode::kTooManyLogicalSessions,
                 "cannot add session into the cache: too many logical sessions"};
  Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  SessionPtr& session = s.sessions[std::string(id)];
  if (!session) {
    session = fresh;
    count_.fetch_add(1, std::memory_order_relaxed);
    started_.fetch_add(1, std::memory_order_relaxed);
  }
  session->Touch(now);
  return session;
}

SessionPtr SessionRegistry::Find(std::string_view id) const {
  const Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  auto it = s.sessions.find(std::string(id));
  return it == s.sessions.end() ? nullptr : it->second;
}

Result<SessionPtr> SessionRegistry::Start(Instant now, std::string_view address,
                                          std::string_view digest) {
  MAYFLY_TRY(const std::string id, NewUuidBytes());
  char key[kSessionKeyBytes];
  return Use(SessionKey(id, digest, key), now, address);
}

bool SessionRegistry::End(std::string_view id) { return EndUnused(id, INT64_MAX); }

bool SessionRegistry::EndUnused(std::string_view id, int64_t since_millis, const Session* only) {
  SessionPtr dead;
  {
    Shard& s = shard(id);
    std::lock_guard l(s.mutex);
    auto it = s.sessions.find(std::string(id));
    if (it == s.sessions.end() || (only != nullptr && it->second.get() != only)) return false;
    dead = it->second;
    // Later users of the session see it (the dispatcher looks after touching and taking it).
    uint64_t state = dead->state_.load();
    do {
      if (dead->last_use().millis > since_millis || (only != nullptr && state != 0)) return false;
    } while (!dead->state_.compare_exchange_weak(state, state | Session::kEnded));
    s.sessions.erase(it);
  }
  count_.fetch_sub(1, std::memory_order_relaxed);
  ended_.fetch_add(1, std::memory_order_relaxed);
  if (on_end_) on_end_(id);
  return true;
}

int SessionRegistry::EndAll() {
  int n = 0;
  for (const auto& [id, last] : List()) n += End(id) ? 1 : 0;
  return n;
}

int SessionRegistry::Sweep(Instant now, int64_t timeout_millis) {
  int n = 0;
  for (const auto& [id, last] : List())
    if (last.millis + timeout_millis <= now.millis && EndUnused(id, now.millis - timeout_millis))
      ++n;
  timed_out_.fetch_add(n, std::memory_order_relaxed);
  return n;
}

size_t SessionRegistry::size() const {
  return static_cast<size_t>(count_.load(std::memory_order_relaxed));
}

SessionRegistry::Totals SessionRegistry::totals() const {
  return {count_.load(std::memory_order_relaxed), ended_.load(std::memory_order_relaxed),
          timed_out_.load(std::memory_order_relaxed), started_.load(std::memory_order_relaxed)};
}

std::vector<std::pair<std::string, Instant>> SessionRegistry::List() const {
  std::vector<std::pair<std::string, Instant>> out;
  for (const Shard& s : shards_) {
    std::lock_guard l(s.mutex);
    for (const auto& [id, session] : s.sessions) out.emplace_back(id, session->last_use());
  }
  return out;
}

Result<void> SessionRegistry::ForEach(
    const std::function<bool(std::string_view key)>& shown,
    const std::function<Result<void>(std::string_view key, Instant last)>& f) const {
  std::vector<std::pair<std::string, Instant>> some;
  for (const Shard& s : shards_) {
    some.clear();
    {
      std::lock_guard l(s.mutex);
      for (const auto& [id, session] : s.sessions)
        if (shown(id)) some.emplace_back(id, session->last_use());
    }
    for (const auto& [id, last] : some) {
      MAYFLY_TRY(f(id, last));
    }
  }
  return Ok();
}

}  // namespace mayfly
