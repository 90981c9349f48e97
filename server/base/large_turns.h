#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "protocol/error.h"
#include "storage/operation.h"

namespace mayfly {

/// Units of large inserts are staged and committed a few at a time: each holds several copies of
/// its documents, and more of them at once finish no sooner. In order of arrival. Threads: any;
/// blocking.
class LargeTurns {
 public:
  /// How many there are at once.
  void SetMost(int most) { most_ = most; }

 private:
  friend class LargeTurn;
  std::mutex mutex_;
  std::condition_variable given_;
  int most_ = 2, taken_ = 0;
  uint64_t next_ = 0;
  std::set<uint64_t> waiting_;
};

/// One of them. Never held while documents are validated.
class LargeTurn {
 public:
  explicit LargeTurn(LargeTurns& turns) : turns_(turns) {}
  LargeTurn(const LargeTurn&) = delete;
  ~LargeTurn() { Give(); }
  /// Errors: those of CheckInterrupt.
  Result<void> Take(Operation& op);
  void Give();

 private:
  LargeTurns& turns_;
  bool held_ = false;
};

}  // namespace mayfly
