#include "server/base/session_registry.h"

#include <algorithm>
#include <deque>

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

/// The sessions of one owner (OwnerOf).
struct ClientSessions {
  int64_t held = 0;
  std::deque<std::string> keys;  ///< the first are the oldest; some may have ended
};
/// Sessions, for the one that was not used for the longest; and how often, while all of them turn
/// out to have ended.
constexpr int kLookedAt = 64, kRounds = 16;

}  // namespace

struct SessionRegistry::Clients {
  std::mutex mutex;
  ClientStringMap<ClientSessions> sessions;
};

SessionRegistry::SessionRegistry() : clients_(std::make_shared<Clients>()) {}

SessionPtr SessionRegistry::LeastUsed(const std::vector<std::string>& keys) const {
  // With the times of now: others go on using them.
  std::vector<std::pair<int64_t, SessionPtr>> unused;
  for (const std::string& key : keys)
    if (SessionPtr s = Find(key); s && !s->busy())
      unused.emplace_back(s->last_use().millis, std::move(s));
  std::ranges::sort(unused, {}, [](const auto& s) { return s.first; });
  for (auto& [used, s] : unused)
    if (!in_use_ || !in_use_(s->id())) return std::move(s);
  return nullptr;
}

Result<void> SessionRegistry::MakeRoomFor(const std::string& owner) {
  bool any_in_use = false;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::string> oldest;
    {
      std::lock_guard l(clients_->mutex);
      const auto of = clients_->sessions.find(owner);
      const int64_t room = static_cast<int64_t>(kMaxSessions) - count_;
      if (of == clients_->sessions.end() || of->second.held < std::min(kMaxClientSessions, room))
        return Ok();
      for (std::deque<std::string>& keys = of->second.keys;
           !keys.empty() && oldest.size() < kLookedAt; keys.pop_front())
        oldest.push_back(std::move(keys.front()));
    }
    // Those that have ended by themselves are forgotten.
    std::erase_if(oldest, [&](const std::string& key) { return Find(key) == nullptr; });
    if (oldest.empty()) continue;
    // Whoever needs it again starts a new one; it is its own.
    const SessionPtr least_used = LeastUsed(oldest);
    if (least_used) End(least_used->id());
    {
      std::lock_guard l(clients_->mutex);
      if (const auto of = clients_->sessions.find(owner); of != clients_->sessions.end())
        for (std::string& key : oldest)
          if (!least_used || key != least_used->id()) of->second.keys.push_back(std::move(key));
    }
    if (least_used) return Ok();
    any_in_use = true;
  }
  if (!any_in_use) return Ok();
  return Error{
      ErrorCode::kTooManyLogicalSessions,
      "cannot add session into the cache: too many logical sessions of this user, and they "
      "have open cursors or transactions: end some of them (killCursors, endSessions)"};
}

std::shared_ptr<void> SessionRegistry::TakeShare(std::string owner, std::string_view key) {
  {
    std::lock_guard l(clients_->mutex);
    ClientSessions& of = clients_->sessions[owner];
    of.keys.emplace_back(key);
    // At most as many keys of ended sessions as of existing ones.
    while (of.keys.size() > 2 * static_cast<size_t>(SessionRegistry::kMaxClientSessions))
      of.keys.pop_front();
    ++of.held;
  }
  return std::shared_ptr<void>(nullptr, [clients = clients_, owner = std::move(owner)](void*) {
    std::lock_guard l(clients->mutex);
    if (auto c = clients->sessions.find(owner);
        c != clients->sessions.end() && --c->second.held == 0)
      clients->sessions.erase(c);
  });
}

Result<SessionPtr> SessionRegistry::Use(std::string_view id, Instant now,
                                        std::string_view address) {
  if (SessionPtr known = Find(id)) {
    known->Touch(now);
    // It may have ended in the same moment.
    if (!known->ended.load()) [[likely]]
      return known;
  }
  std::shared_ptr<void> share;
  if (!address.empty()) {
    std::string owner = OwnerOf(SessionUid(id), address);
    MAYFLY_TRY(MakeRoomFor(owner));
    share = TakeShare(std::move(owner), id);
  }
  if (count_.load(std::memory_order_relaxed) >= static_cast<int64_t>(kMaxSessions))
    return Error{ErrorCode::kTooManyLogicalSessions,
                 "cannot add session into the cache: too many logical sessions"};
  Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  SessionPtr& session = s.sessions[std::string(id)];
  if (!session) {
    session = std::make_shared<Session>(std::string(id), std::move(share));
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

bool SessionRegistry::EndUnused(std::string_view id, int64_t since_millis) {
  SessionPtr dead;
  {
    Shard& s = shard(id);
    std::lock_guard l(s.mutex);
    auto it = s.sessions.find(std::string(id));
    if (it == s.sessions.end() || it->second->last_use().millis > since_millis) return false;
    dead = it->second;
    // Later users of the session see it (the dispatcher looks after touching it).
    dead->ended = true;
    if (dead->last_use().millis > since_millis) {
      dead->ended = false;
      return false;
    }
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

}  // namespace mayfly
