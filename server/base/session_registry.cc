#include "server/base/session_registry.h"

#include <arpa/inet.h>
#include <openssl/rand.h>

#include "protocol/seeded_hash.h"
#include "server/base/client_of.h"

namespace mayfly {

std::string NewUuidBytes() {
  std::string b(16, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(b.data()), 16);
  b[6] = static_cast<char>((b[6] & 0x0F) | 0x40);
  b[8] = static_cast<char>((b[8] & 0x3F) | 0x80);
  return b;
}

std::string UuidToString(std::string_view b) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string s;
  for (size_t i = 0; i < b.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) s.push_back('-');
    s.push_back(kHex[static_cast<uint8_t>(b[i]) >> 4]);
    s.push_back(kHex[static_cast<uint8_t>(b[i]) & 15]);
  }
  return s;
}

std::string ClientOf(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return std::string(address);
  std::string host(address.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  in6_addr v6;
  if (host.find(':') == std::string::npos || inet_pton(AF_INET6, host.c_str(), &v6) != 1)
    return host;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return host;
  return std::string(reinterpret_cast<const char*>(v6.s6_addr), 8);
}

namespace {

/// Sessions by client, over the process.
struct Clients {
  std::mutex mutex;
  ClientStringMap<int64_t> sessions;
};
Clients& TheClients() {
  static auto* const clients = new Clients;
  return *clients;
}

/// One session more of this client, until the result goes. Errors: TooManyLogicalSessions 261.
Result<std::shared_ptr<void>> TakeShare(std::string client) {
  Clients& clients = TheClients();
  {
    std::lock_guard l(clients.mutex);
    int64_t& held = clients.sessions[client];
    if (held >= SessionRegistry::kMaxClientSessions)
      return Error{ErrorCode::kTooManyLogicalSessions,
                   "cannot add session into the cache: too many logical sessions of this client's "
                   "address (" +
                       std::to_string(held) +
                       "): end some with endSessions, or wait until they end"};
    ++held;
  }
  return std::shared_ptr<void>(nullptr, [client = std::move(client)](void*) {
    Clients& of = TheClients();
    std::lock_guard l(of.mutex);
    if (auto c = of.sessions.find(client); c != of.sessions.end() && --c->second == 0)
      of.sessions.erase(c);
  });
}

}  // namespace

Result<SessionPtr> SessionRegistry::Use(std::string_view id, Instant now,
                                        std::string_view address) {
  Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  auto it = s.sessions.find(std::string(id));
  if (it == s.sessions.end()) {
    if (count_.load(std::memory_order_relaxed) >= static_cast<int64_t>(kMaxSessions))
      return Error{ErrorCode::kTooManyLogicalSessions,
                   "cannot add session into the cache: too many logical sessions"};
    std::shared_ptr<void> share;
    if (!address.empty()) {
      MAYFLY_TRY(share, TakeShare(ClientOf(address)));
    }
    it = s.sessions
             .emplace(std::string(id), std::make_shared<Session>(std::string(id), std::move(share)))
             .first;
    count_.fetch_add(1, std::memory_order_relaxed);
    started_.fetch_add(1, std::memory_order_relaxed);
  }
  it->second->Touch(now);
  return it->second;
}

SessionPtr SessionRegistry::Find(std::string_view id) const {
  const Shard& s = shard(id);
  std::lock_guard l(s.mutex);
  auto it = s.sessions.find(std::string(id));
  return it == s.sessions.end() ? nullptr : it->second;
}

Result<SessionPtr> SessionRegistry::Start(Instant now, std::string_view address) {
  return Use(NewUuidBytes(), now, address);
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
    // Seen by who uses it from now on (the dispatcher looks after it has touched it).
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
