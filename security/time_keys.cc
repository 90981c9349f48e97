#include "security/time_keys.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "security/crypto.h"

namespace mayfly {
namespace {

constexpr char kFormat = 1;
constexpr size_t kKeyBytes = 20, kEntryBytes = 8 + 8 + kKeyBytes;
constexpr size_t kMaxTimeKeys = 8;

struct Key {
  int64_t id = 0, expires = 0;  ///< seconds since 1970
  std::string secret;
};

/// format:u8, then for each key id:le64 expires:le64 secret:20, the one that ends first first.
std::string Stored(const std::vector<Key>& keys) {
  std::string out(1, kFormat);
  for (const Key& k : keys) {
    out.append(reinterpret_cast<const char*>(&k.id), 8);
    out.append(reinterpret_cast<const char*>(&k.expires), 8);
    out += k.secret;
  }
  return out;
}

struct FreeMac {
  void operator()(EVP_MAC_CTX* c) const { EVP_MAC_CTX_free(c); }
};
using Mac = std::unique_ptr<EVP_MAC_CTX, FreeMac>;

Mac NewMac(const Key& key) {
  static EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  Mac mac(EVP_MAC_CTX_new(hmac));
  OSSL_PARAM parameters[2] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, const_cast<char*>("SHA1"), 0),
      OSSL_PARAM_construct_end()};
  if (!mac || EVP_MAC_init(mac.get(), reinterpret_cast<const unsigned char*>(key.secret.data()),
                           key.secret.size(), parameters) != 1)
    return {};
  return mac;
}

/// The HMAC of a time by a context that has its key. False: OpenSSL cannot.
bool SignBy(EVP_MAC_CTX* mac, uint64_t time, std::array<char, 20>* hash) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(time >> (56 - 8 * i));
  size_t n = 0;
  // Without a key: the context's own again.
  return EVP_MAC_init(mac, nullptr, 0, nullptr) == 1 &&
         EVP_MAC_update(mac, bytes, sizeof bytes) == 1 &&
         EVP_MAC_final(mac, reinterpret_cast<unsigned char*>(hash->data()), &n, hash->size()) ==
             1 &&
         n == hash->size();
}

int64_t SecondsOf(uint64_t time) { return static_cast<int64_t>(time >> 32); }

}  // namespace

struct TimeKeys::Keys {
  std::vector<Key> all;  ///< at least one, the one that ends first first
  uint64_t generation = 0;

  /// That of a time: the first that has not ended by then; the last if all have.
  size_t At(int64_t seconds) const {
    size_t i = 0;
    while (i + 1 < all.size() && all[i].expires <= seconds) ++i;
    return i;
  }
};

/// What a thread has from the last time that it signed.
struct TimeKeys::Signer {
  std::shared_ptr<const Keys> keys;
  size_t key = 0;
  Mac mac;
  uint64_t time = 0;
  TimeSignature signature;
};

std::shared_ptr<const TimeKeys::Keys> TimeKeys::keys() const {
  std::lock_guard l(mutex_);
  return keys_;
}

Result<void> TimeKeys::Use(std::string_view stored) {
  static std::atomic<uint64_t> generations{0};
  const Error bad{ErrorCode::kUnsupportedFormat, "the keys of cluster times cannot be read"};
  if (stored.empty() || stored[0] != kFormat || (stored.size() - 1) % kEntryBytes != 0) return bad;
  stored.remove_prefix(1);
  if (stored.empty() || stored.size() / kEntryBytes > kMaxTimeKeys) return bad;
  auto next = std::make_shared<Keys>();
  for (; !stored.empty(); stored.remove_prefix(kEntryBytes)) {
    Key k;
    std::memcpy(&k.id, stored.data(), 8);
    std::memcpy(&k.expires, stored.data() + 8, 8);
    k.secret = stored.substr(16, kKeyBytes);
    if (k.id <= 0 || (!next->all.empty() && k.expires <= next->all.back().expires)) return bad;
    next->all.push_back(std::move(k));
  }
  next->generation = ++generations;
  const uint64_t generation = next->generation;
  // The last key is used from the end of the one before it on: by then there has to be another.
  const size_t n = next->all.size();
  const int64_t due = n == 1 ? 0 : next->all[n - 2].expires;
  std::lock_guard l(mutex_);
  keys_ = std::move(next);
  due_ = due;
  generation_.store(generation, std::memory_order_release);
  return Ok();
}

Result<std::optional<std::string>> TimeKeys::Renewed(int64_t seconds, int64_t interval) const {
  const auto now = keys();
  std::vector<Key> all = now ? now->all : std::vector<Key>();
  const size_t before = all.size();
  int64_t last = before != 0 ? all.back().id : 0;
  // At most two are missing: the present one and the next.
  while (all.empty() || all.back().expires <= seconds + interval) {
    Key k;
    k.id = last = std::max(last + 1, seconds << 32);
    k.expires = std::max(all.empty() ? seconds : all.back().expires, seconds) + interval;
    MAYFLY_TRY(k.secret, RandomBytes(kKeyBytes));
    all.push_back(std::move(k));
  }
  if (all.size() == before) return std::optional<std::string>();
  // A time that has passed is not ahead of all members.
  while (all.size() > 2 && (all[0].expires <= seconds - interval || all.size() > kMaxTimeKeys))
    all.erase(all.begin());
  return std::optional<std::string>(Stored(all));
}

std::vector<TimeKeys::Shown> TimeKeys::All() const {
  std::vector<Shown> shown;
  if (const auto now = keys())
    for (const Key& k : now->all) shown.push_back({k.id, k.expires, k.secret});
  return shown;
}

bool TimeKeys::Due(int64_t seconds) {
  int64_t due = due_.load(std::memory_order_relaxed);
  return any() && seconds >= due && due_.compare_exchange_strong(due, seconds + 1);
}

bool TimeKeys::Sign(uint64_t time, TimeSignature* out) const {
  thread_local Signer signer;
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (generation == 0) return false;
  const bool same = signer.keys != nullptr && signer.keys->generation == generation;
  if (same && signer.time == time) [[likely]] {
    *out = signer.signature;
    return true;
  }
  if (!same) {
    signer.keys = keys();
    signer.mac.reset();
  }
  const size_t key = signer.keys->At(SecondsOf(time));
  if (signer.mac == nullptr || signer.key != key) {
    signer.mac = NewMac(signer.keys->all[key]);
    signer.key = key;
  }
  signer.time = 0;
  if (signer.mac == nullptr || !SignBy(signer.mac.get(), time, &signer.signature.hash))
    return false;
  signer.signature.key_id = signer.keys->all[key].id;
  signer.time = time;
  *out = signer.signature;
  return true;
}

Result<void> TimeKeys::Check(uint64_t time, std::string_view hash, int64_t key_id) const {
  const auto now = keys();
  const Error missing{ErrorCode::kKeyNotFound,
                      "No keys found for HMAC that is valid for time: { ts: Timestamp(" +
                          std::to_string(time >> 32) + ", " +
                          std::to_string(static_cast<uint32_t>(time)) +
                          ") } with id: " + std::to_string(key_id)};
  if (!now) return missing;
  const auto key =
      std::find_if(now->all.begin(), now->all.end(), [&](const Key& k) { return k.id == key_id; });
  if (key == now->all.end() || (key->expires <= SecondsOf(time) && key + 1 != now->all.end()))
    return missing;
  std::array<char, 20> expected{};
  const Mac mac = NewMac(*key);
  if (!mac || !SignBy(mac.get(), time, &expected) ||
      !SameBytes(hash, {expected.data(), expected.size()}))
    return Error{ErrorCode::kTimeProofMismatch, "Proof does not match the cluster time"};
  return Ok();
}

void TimeKeys::Believe(uint64_t time) {
  uint64_t known = believed_.load(std::memory_order_relaxed);
  while (known < time && !believed_.compare_exchange_weak(known, time)) {
  }
}

}  // namespace mayfly
