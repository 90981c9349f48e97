#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/instant.h"

namespace mayfly {

/// The results of this server's backups since its start. Threads: any.
class BackupFigures {
 public:
  struct Made {
    std::string id, path;
    Instant time{0};
    uint64_t files = 0, bytes = 0, copied_files = 0, copied_bytes = 0;
    int64_t duration_millis = 0;
  };
  struct Failed {
    std::string path, error;
    Instant time{0};
  };
  struct Figures {
    int64_t running = 0;                 ///< at most one but for those that are about to be refused
    uint64_t bytes_done = 0, bytes = 0;  ///< of the running one
    int64_t made = 0, failed = 0;
    std::optional<Made> last;
    std::optional<Failed> last_failure;  ///< if none was made since
  };

  /// A backup begins.
  void Begin() {
    std::lock_guard l(mutex_);
    ++now_.running;
  }
  /// In bytes, of the one that runs.
  void Progress(uint64_t done, uint64_t total) {
    std::lock_guard l(mutex_);
    now_.bytes_done = done;
    now_.bytes = total;
  }
  /// It is complete.
  void End(Made made) {
    std::lock_guard l(mutex_);
    EndOne();
    ++now_.made;
    now_.last = std::move(made);
    now_.last_failure.reset();
  }
  /// It is not there: cancelled, refused, or an error.
  void End(Failed failed) {
    std::lock_guard l(mutex_);
    EndOne();
    ++now_.failed;
    now_.last_failure = std::move(failed);
  }
  /// As of now.
  Figures Get() const {
    std::lock_guard l(mutex_);
    return now_;
  }

 private:
  void EndOne() {
    if (--now_.running == 0) now_.bytes_done = now_.bytes = 0;
  }
  mutable std::mutex mutex_;
  Figures now_;  ///< guarded by mutex_
};

}  // namespace mayfly
