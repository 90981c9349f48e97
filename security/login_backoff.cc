#include "security/login_backoff.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace mayfly {
namespace {

/// The time that half of the entries are older than. REQUIRES: there are some.
template <class Table>
int64_t MiddleOf(const Table& table) {
  std::vector<int64_t> times;
  times.reserve(table.size());
  for (const auto& [key, e] : table) times.push_back(e.last);
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

LoginBackoff::Attempt::Attempt(LoginBackoff* owner, std::string address, UserName user, int64_t now)
    : owner_(owner), address_(std::move(address)), user_(std::move(user)), now_(now) {}

LoginBackoff::Attempt::Attempt(Attempt&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      address_(std::move(other.address_)),
      user_(std::move(other.user_)),
      now_(other.now_) {}

LoginBackoff::Attempt::~Attempt() {
  if (owner_ != nullptr) owner_->End(*this, true);
}

void LoginBackoff::Attempt::Succeeded() {
  if (owner_ == nullptr) return;
  owner_->Learn(*this);
  Abandon();
}

void LoginBackoff::Attempt::Abandon() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->End(*this, false);
}

LoginBackoff::Keys LoginBackoff::KeysOf(std::string_view address, const UserName& user) {
  // Neither part of a name can contain NUL; the bytes of an address may, so it comes last.
  std::string name = user.db;
  name.push_back('\0');
  name.append(user.user).push_back('\0');
  Keys keys;
  keys.pair = "p" + name + std::string(address);
  keys.address = "a" + std::string(address);
  keys.user = "u" + std::move(name);
  return keys;
}

int64_t LoginBackoff::Wait(const std::string& key, int free, int64_t max, int64_t now) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return 0;
  Entry& e = at->second;
  if (now - e.last > kForgetMillis) {
    if (e.under_way == 0) {
      entries_.erase(at);
      return 0;
    }
    e.failures = 0;
  }
  const int beyond = e.failures + e.under_way - free;
  if (beyond < 0) return 0;
  const int64_t pause = std::min(max, kFirstDelayMillis << std::min(beyond, 20));
  return std::max<int64_t>(0, e.last + pause - now);
}

bool LoginBackoff::HasRoom() const { return entries_.size() + kLanes <= kMaxEntries; }

void LoginBackoff::MakeRoom(int64_t now) {
  ++rooms_made_;
  // Attempts in progress are few, and need their entry at their end.
  const auto idle = [](const Entry& e) { return e.under_way == 0; };
  std::erase_if(entries_, [&](const auto& e) {
    return idle(e.second) && now - e.second.last > kForgetMillis;
  });
  // Entries of addresses stay longest: made-up user names must not push them out.
  for (const bool addresses : {false, true}) {
    if (HasRoom()) return;
    const int64_t middle = MiddleOf(entries_);
    std::erase_if(entries_, [&](const auto& e) {
      return idle(e.second) && e.second.last <= middle && (addresses || e.first[0] != 'a');
    });
  }
}

void LoginBackoff::Enter(const std::string& key, int64_t now) {
  Entry& e = entries_[key];
  ++e.under_way;
  e.last = std::max(e.last, now);
}

void LoginBackoff::Leave(const std::string& key, bool failed, int64_t now) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  Entry& e = at->second;
  --e.under_way;
  if (failed) {
    e.failures = std::min(e.failures + 1, 1'000'000);
    e.last = std::max(e.last, now);
  } else if (e.failures == 0 && e.under_way == 0) {
    entries_.erase(at);
  }
}

std::optional<LoginBackoff::Attempt> LoginBackoff::Begin(std::string_view address,
                                                         const UserName& user, int64_t since,
                                                         int64_t now, int64_t* wait) {
  const Keys keys = KeysOf(address, user);
  std::lock_guard l(mutex_);
  if (known_.contains(keys.pair)) {
    *wait = Wait(keys.pair, kFreeOfKnown, kShortDelayMillis, now);
  } else {
    const bool again = entries_.contains(keys.pair);
    *wait = Wait(keys.pair, kFreeOfPair, kMaxDelayMillis, now);
    *wait = std::max(*wait, Wait(keys.address, kFreeOfAddress, kMaxDelayMillis, now));
    // An attacker who tries a user from many addresses soon has no first attempts left.
    if (again) *wait = std::max(*wait, Wait(keys.user, kFreeOfUser, kShortDelayMillis, now));
  }
  if (*wait > 0) {
    // Asked again soon: another login may have made the pair a known one.
    *wait = now - since >= kMaxWaitMillis ? 0 : std::min(*wait, kAskAgainMillis);
    return std::nullopt;
  }
  if (!HasRoom()) MakeRoom(now);
  for (const std::string* key : {&keys.pair, &keys.address, &keys.user}) Enter(*key, now);
  return Attempt(this, std::string(address), user, now);
}

void LoginBackoff::End(const Attempt& a, bool failed) {
  const Keys keys = KeysOf(a.address_, a.user_);
  std::lock_guard l(mutex_);
  for (const std::string* key : {&keys.pair, &keys.address, &keys.user})
    Leave(*key, failed, a.now_);
}

void LoginBackoff::Learn(const Attempt& a) {
  const Keys keys = KeysOf(a.address_, a.user_);
  std::lock_guard l(mutex_);
  if (known_.size() >= kMaxKnown && !known_.contains(keys.pair)) {
    const int64_t middle = MiddleOf(known_);
    std::erase_if(known_, [&](const auto& e) { return e.second.last <= middle; });
  }
  const auto [at, first] = known_.try_emplace(keys.pair);
  at->second.last = a.now_;
  // Not more often: else each login of the user would give an attacker at the same address five
  // more guesses.
  if (!first && a.now_ - at->second.forgiven < kForgetMillis) return;
  at->second.forgiven = a.now_;
  if (const auto e = entries_.find(keys.pair); e != entries_.end()) e->second.failures = 0;
}

uint64_t LoginBackoff::rooms_made() const {
  std::lock_guard l(mutex_);
  return rooms_made_;
}

size_t LoginBackoff::size() const {
  std::lock_guard l(mutex_);
  return entries_.size() + known_.size();
}

}  // namespace mayfly
