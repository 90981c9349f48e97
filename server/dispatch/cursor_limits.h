#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"

namespace mayfly {

/// Limits the number and the memory of open cursors, for one client and for all. A cursor outlives
/// its connection, so nothing else would stop a client that opens cursors without end. A client is
/// a user, or without access control an address (OwnerOf). However many cursors are open, whoever
/// has the fewest finds room; their memory is shared in the same way (FitsFairShare). The memory of
/// cursors, also of small ones, counts to large_memory.
/// Threads: any.
class CursorLimits : public std::enable_shared_from_this<CursorLimits> {
 public:
  /// If the memory allows it; fewer with less than 12 GB.
  static constexpr int64_t kMaxCursors = 100'000;
  static int64_t MostCursors();
  static int64_t MostOfClient() { return MostCursors() / 4; }
  /// Half of what large_memory allows for all operations, and a quarter.
  static int64_t MostBytes() { return large_memory::Limit() / 2; }
  static int64_t MostBytesOfClient() { return large_memory::Limit() / 4; }

  /// One open cursor, until it is destroyed. Used by one thread at a time.
  class Share {
   public:
    Share(std::shared_ptr<CursorLimits> of, std::string client)
        : of_(std::move(of)), client_(std::move(client)) {}
    ~Share();
    Share(const Share&) = delete;
    /// It takes this many bytes now, of which `held` are counted to large_memory elsewhere. Never
    /// refused: the cursor is open.
    void Set(size_t bytes, size_t held);

   private:
    friend class CursorLimits;
    const std::shared_ptr<CursorLimits> of_;
    const std::string client_;
    int64_t bytes_ = 0, held_ = 0;
  };

  /// `user`: UserName::Id(); empty: the `address`, "ip:port", counts. Both empty: one of the
  /// server's own. Errors: ExceededMemoryLimit 146.
  Result<std::unique_ptr<Share>> Take(std::string_view user, std::string_view address, size_t bytes,
                                      size_t held);

 private:
  struct Use {
    int64_t cursors = 0, bytes = 0;
  };
  /// `whose`: of the client, for messages. REQUIRES: mutex_.
  Result<void> Check(const Use& client, std::string_view whose) const;
  /// REQUIRES: mutex_.
  void Change(Share& share, Use& client, int64_t bytes, int64_t held);

  std::mutex mutex_;
  ClientStringMap<Use> clients_;
  Use all_;
  int64_t held_elsewhere_ = 0;
  large_memory::Hold hold_;
};

}  // namespace mayfly
