#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "query/expression/expression.h"
#include "query/sort/document_source.h"
#include "query/sort/spill_file.h"
#include "storage/operation.h"

namespace mayfly {

struct IndexInfo;

/// A parsed sort specification: {a: 1, "b.c": -1, score: {$meta: "textScore"}}. Immutable; threads:
/// any.
class SortPattern {
 public:
  enum class Meta : uint8_t { kNone, kTextScore, kRandom, kExpireAt };
  /// One field of the sort, or one kind of metadata (then `path` is the name it was given).
  struct Part {
    std::string path;
    bool descending = false;
    Meta meta = Meta::kNone;
  };

  SortPattern() = default;
  /// Errors: an empty specification Location15976, an order that is not 1, -1 or {$meta: …}
  /// Location15975 / 15974, and a few more of MongoDB's.
  static Result<SortPattern> Parse(BsonView spec);

  const std::vector<Part>& parts() const { return parts_; }
  const BsonDocument& spec() const { return spec_; }
  bool empty() const { return parts_.empty(); }
  bool needs_metadata() const { return needs_metadata_; }

  /// Appends a key whose memcmp order is the sort order. An array counts as its least element
  /// (greatest when descending), an empty array as undefined, a missing field as null. Parts that
  /// go through one array take their values from the same element. Errors: BadValue 2 for two
  /// arrays side by side ("parallel arrays").
  Result<void> AppendKey(BsonView doc, const DocumentMetadata* metadata, std::string& out) const;
  /// The key as values, in an array: what {$meta: "sortKey"} shows.
  Result<Value> KeyValues(BsonView doc, const DocumentMetadata* metadata) const;
  /// <0, 0, >0 between two documents.
  Result<int> Compare(BsonView a, BsonView b) const;

 private:
  /// The key's encoding and its type bits; `type_bits` may be null.
  Result<void> Encode(BsonView doc, const DocumentMetadata* metadata, std::string& out,
                      std::string* type_bits) const;
  std::vector<Part> parts_;
  std::shared_ptr<const IndexInfo>
      fields_;  ///< the parts that are fields, as an index would have them
  BsonDocument spec_;
  bool needs_metadata_ = false;
};

/// A Sorter's memory limit, and where it spills. Fixed when the sorter is made.
struct SorterOptions {
  int64_t limit = 0;                        ///< keep only that many (top-k); 0: all
  size_t memory_limit = size_t{100} << 20;  ///< bytes held before it spills
  bool allow_disk_use =
      true;             ///< false: over the limit is QueryExceededMemoryLimitNoDiskUseAllowed 292
  SpillPlace temp_dir;  ///< spill files go here
  bool want_sort_key = false;  ///< fill DocumentMetadata::sort_key on the way out
};

/// Sorts documents: in memory, top-k when there is a limit, with runs on disk beyond the memory
/// limit. Stable. Add…, Finish, Next…. Keeps metadata and `extra` (bytes of the caller's, a record
/// key say) beside each document. One thread.
class Sorter {
 public:
  Sorter(SortPattern pattern, SorterOptions options);
  ~Sorter();
  /// Copies what it keeps. Errors: BadValue 2 for parallel arrays; 292 or 146 beyond the limits
  /// when it may not use the disk; those of writing a file.
  Result<void> Add(BsonView doc, const DocumentMetadata* metadata = nullptr,
                   std::string_view extra = {});
  /// Sorts what is in memory, or gets ready to merge the runs. Nothing may be added afterwards;
  /// further calls do nothing. Errors: those of the files.
  Result<void> Finish();
  /// The next document in order; false at the end. Valid until the next call.
  Result<bool> Next(StreamDocument* out);
  /// `extra` of the document last returned.
  std::string_view extra() const { return extra_; }

  size_t memory_used() const { return memory_; }
  int64_t documents_sorted() const { return added_; }
  int64_t bytes_sorted() const { return bytes_sorted_; }
  int64_t spills() const { return spills_; }
  int64_t spilled_bytes() const { return spilled_bytes_; }
  /// Adds to what the operation says of its sorts. Once, when all documents are there.
  void CountFor(Operation& op) const {
    op.sorted_keys += added_;
    op.sorted_bytes += bytes_sorted_;
    op.sort_spills += spills_;
  }
  const SortPattern& pattern() const { return pattern_; }
  /// What it has in memory.
  void AddKept(large_memory::Kept* kept) const { kept->Add(memory_, hold_); }

 private:
  struct Entry {
    std::string key;      ///< sort key, then an 8-byte sequence number that makes the sort stable
    std::string payload;  ///< header, document, metadata, extra
  };
  struct Run;
  static bool Less(const Entry& a, const Entry& b) { return a.key < b.key; }
  static size_t Cost(const Entry& e);
  Result<void> Spill();
  Result<void> MergeRuns();
  Result<bool> NextMerged(Entry* out);
  Result<void> Unpack(const Entry& entry, StreamDocument* out);

  SortPattern pattern_;
  SorterOptions options_;
  std::vector<Entry> entries_;  ///< a heap with the greatest on top once it holds `limit` entries
  bool heap_ = false;
  std::vector<std::unique_ptr<Run>> runs_;
  size_t memory_ = 0, next_ = 0;
  large_memory::Hold hold_;
  int64_t added_ = 0, returned_ = 0, bytes_sorted_ = 0, spilled_bytes_ = 0, spills_ = 0;
  bool finished_ = false;
  std::string scratch_key_;
  Entry current_;
  DocumentMetadata metadata_;
  std::string_view extra_;
};

}  // namespace mayfly
