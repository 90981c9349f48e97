#pragma once
#include <cstdint>
#include <functional>

namespace mayfly {

/// Threads that help long scans while they have nothing else to do. Whoever opens a store may give
/// it some (QueryState). Threads: any.
class ScanHelpers {
 public:
  virtual ~ScanHelpers() = default;
  /// How many may help at the same time; 0: none.
  virtual int64_t most() const = 0;
  /// How many documents a scan reads by itself before it asks for help: most scans are short.
  virtual int64_t after() const = 0;
  /// Runs `f` soon on one of the threads, which then works for the same large_memory budget as the
  /// others of the server. False: all of them are occupied, and `f` is not called.
  virtual bool TryRun(std::function<void()> f) = 0;
  /// Others need the processors: whoever helps should stop soon.
  virtual bool Wanted() const = 0;
};

}  // namespace mayfly
