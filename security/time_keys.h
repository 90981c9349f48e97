#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// The content of `$clusterTime.signature`: an HMAC-SHA1 of the time, and the id of its key.
struct TimeSignature {
  std::array<char, 20> hash{};
  int64_t key_id = 0;
  std::string_view view() const { return {hash.data(), hash.size()}; }
};

/// The keys by which members recognise times that members have signed: a cluster time comes with
/// its signature. One key is used until it ends. The next one exists for an interval before, so
/// that every member has it by then. Knows nothing of storage. Threads: any.
class TimeKeys {
 public:
  /// Replaces the keys by stored ones. Errors: UnsupportedFormat 12; they stay as they were then.
  Result<void> Use(std::string_view stored);
  /// What to store so that the time `seconds` and the following interval have keys; none: they
  /// have. REQUIRES: interval > 0. Errors: InternalError 1 without random bytes.
  Result<std::optional<std::string>> Renewed(int64_t seconds, int64_t interval) const;
  /// A key as it is shown.
  struct Shown {
    int64_t id = 0, expires = 0;  ///< seconds since 1970
    std::string secret;           ///< 20 bytes
  };
  /// All of them, the one that ends first first.
  std::vector<Shown> All() const;
  bool any() const { return generation_.load(std::memory_order_acquire) != 0; }
  /// Whether Renewed has new keys at this time; true at most once a second, for one caller.
  bool Due(int64_t seconds);

  /// False: there is no key. The last signature of each thread is remembered.
  bool Sign(uint64_t time, TimeSignature* out) const;
  /// Errors: KeyNotFound 211; TimeProofMismatch 204.
  Result<void> Check(uint64_t time, std::string_view hash, int64_t key_id) const;

  /// A valid time that a client has brought: members have signed it.
  void Believe(uint64_t time);
  uint64_t believed() const { return believed_.load(std::memory_order_relaxed); }

 private:
  struct Keys;
  struct Signer;
  std::shared_ptr<const Keys> keys() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;
  std::atomic<uint64_t> generation_{0};  ///< of keys_, among all of the process; 0: none
  std::atomic<int64_t> due_{INT64_MAX};
  std::atomic<uint64_t> believed_{0};
};

}  // namespace mayfly
