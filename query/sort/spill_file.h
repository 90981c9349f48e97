#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/error.h"
#include "protocol/large_memory.h"

namespace mayfly {

/// Where an operation spills, and how much it has there: copies share the counts.
struct SpillPlace {
  struct Use {
    std::atomic<int64_t> bytes{0};  ///< there now, in steps of 1 MiB
    std::atomic<int64_t> files{0};  ///< that were made so far
  };
  SpillPlace() = default;
  SpillPlace(std::string d) : directory(std::move(d)) {}  // NOLINT: a folder's name is a place
  std::string directory;                                  ///< empty: $TMPDIR, else /tmp
  std::shared_ptr<Use> use = std::make_shared<Use>();
};

/// A run of (key, payload) records in a temporary file without a name: it is gone with the process,
/// whatever happens. Each record has a checksum, also of its place: what a disk has changed is
/// neither read nor allocated for. One thread.
///
///   record := key size:le32 payload size:le32 crc:le32 key payload
///   crc    := CRC-32C(place in the file:le64 both sizes CRC-32C(key) CRC-32C(payload))
///
/// The budget of the thread that makes it counts its bytes, in steps of 1 MiB (`spilled_bytes`),
/// and limits them, read at every step: `spill_limit` of all operations together (0: half of what
/// the disk would have free without them), `spill_operation_limit` of one (0: half of the former).
class SpillFile {
 public:
  ~SpillFile();
  SpillFile(SpillFile&& o) noexcept
      : file_(std::exchange(o.file_, nullptr)),
        bytes_(o.bytes_),
        read_(o.read_),
        charged_(std::exchange(o.charged_, 0)),
        budget_(o.budget_),
        use_(std::move(o.use_)) {}
  /// Errors: OutOfDiskSpace 14031 (also when a limit above is reached) and InternalError 1 with the
  /// system's words, here and below.
  static Result<SpillFile> Create(const SpillPlace& place);
  Result<void> Write(std::string_view key, std::string_view payload);
  Result<void> Rewind();
  /// False at the end. InternalError 1 also when the file is not as it was written.
  Result<bool> Read(std::string* key, std::string* payload);
  int64_t bytes() const { return bytes_; }

 private:
  SpillFile() = default;
  Result<void> Charge(int64_t bytes);

  std::FILE* file_ = nullptr;
  int64_t bytes_ = 0, read_ = 0, charged_ = 0;
  large_memory::Budget* budget_ = &large_memory::ThreadBudget();
  std::shared_ptr<SpillPlace::Use> use_;
};

}  // namespace mayfly
