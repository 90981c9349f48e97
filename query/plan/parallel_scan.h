#pragma once
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "query/expression/pace.h"
#include "query/plan/plan_stage.h"
#include "query/plan/scan_helpers.h"

namespace mayfly {

/// The records of a range of keys that a filter lets through, read in parts: by the thread of the
/// operation, and by helpers beside it. They come in the order of their keys, with the counts of a
/// scan by one thread; all parts see the same snapshot. One thread; helpers are inside.
class ParallelScan {
 public:
  /// What to read. `context` and `filter` outlive the scan.
  struct Source {
    PlanContext* context = nullptr;
    const ResidualFilter* filter = nullptr;
    std::string lower, upper;    ///< record keys: inclusive; exclusive
    int64_t part_documents = 0;  ///< about so many are read at once
    uint64_t part_bytes = 0;     ///< what so many take in the store, about
  };
  /// One record; valid until the next Next(). Without a document if nobody looks at it
  /// (PlanContext::counts_only).
  struct Found {
    std::string_view key, doc;
    std::optional<Instant> expire_at;
  };

  /// Null if it is not worth it: what is left is small, or there is no memory for it.
  static std::unique_ptr<ParallelScan> Begin(ScanHelpers& helpers, Source source);
  /// Waits until no helper uses what the scan refers to: each of them stops at its next document.
  ~ParallelScan();
  ParallelScan(const ParallelScan&) = delete;

  /// The next record; false at the end of the range. Errors: those of the store and the filter,
  /// after all records in front of the one that failed; an interrupt at once; 146.
  Result<bool> Next(Found* out);
  /// How many documents a scan by one thread would have read since the last call, up to the record
  /// that Next() has returned.
  int64_t TakeExamined();
  /// The first key that has not been returned yet: where another scan goes on.
  std::string Position() const;
  /// How many parts helpers have read, of those that have been returned.
  int64_t parts_of_helpers() const { return parts_of_helpers_; }

 private:
  struct Record {
    uint32_t key_size, doc_size;
    int64_t examined;  ///< documents of the part up to this one
    std::optional<Instant> expire_at;
  };
  enum class PartState : uint8_t { kNew, kRuns, kRead };
  struct Part {
    std::string lower, upper;
    PartState state = PartState::kNew;
    bool large = false;       ///< it begins with a document that no helper copies
    std::string rest;         ///< it ended early, in front of this key
    bool rest_large = false;  ///< which is that of such a document
    std::string bytes;        ///< of the records: key and document one after the other
    std::vector<Record> records;
    int64_t examined = 0;
    std::optional<Error> error;
    bool helped = false;  ///< a helper has read it
    size_t size() const { return bytes.size() + records.capacity() * sizeof(Record); }
  };
  /// What helpers share with the scan. They may come when it is over already.
  struct Shared;

  ParallelScan(ScanHelpers& helpers, Source source, std::string last);
  Result<bool> TakePart();
  static void Help(const std::shared_ptr<Shared>& shared);
  static void Read(Shared& shared, Part& part, Operation& op, bool helps, bool alone);

  const std::shared_ptr<Shared> shared_;
  Operation& op_;
  Part current_;
  size_t next_ = 0, at_ = 0;  ///< in current_.records, current_.bytes
  int64_t counted_ = 0, examined_ = 0;
  int64_t parts_of_helpers_ = 0;
  std::string position_;  ///< when there is no current part
  large_memory::Hold hold_;
};

}  // namespace mayfly
