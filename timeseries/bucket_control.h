#pragma once
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "timeseries/bucket_codec.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// Asked now and then by long work, which its error ends. Empty: nobody is asked.
using InterruptCheck = std::function<Result<void>()>;

/// The work on one `control`: a point of 16 MiB may have a million fields or elements, and each
/// takes some hundred bytes while the least and the greatest are looked for. One thread.
class ControlWork {
 public:
  /// `check` must outlive this.
  explicit ControlWork(const InterruptCheck& check) : check_(check) {}
  /// One more field or element was met, for which `bytes` are kept. Errors: ExceededMemoryLimit 146
  /// without room; that of the check.
  Result<void> Part(size_t bytes) {
    constexpr size_t kPartsPerCheck = 1024;
    if (++parts_ % kPartsPerCheck == 0 && check_) {
      MAYFLY_TRY(check_());
    }
    bytes_ += bytes;
    return hold_.Set(bytes_);
  }

 private:
  const InterruptCheck& check_;
  size_t parts_ = 0, bytes_ = 0;
  large_memory::Hold hold_;
};

/// The least or greatest values of fields over many documents, as a bucket's `control.min` and
/// `control.max` have them: each field for itself in the order of BSON, documents field by field
/// and arrays element by element, whatever the others have; where kinds differ, the kind decides
/// which is lower. Keeps views. One thread at a time.
class FieldExtremes {
 public:
  /// `sign`: -1 for the least, 1 for the greatest.
  explicit FieldExtremes(int sign);
  FieldExtremes(FieldExtremes&&) noexcept;
  FieldExtremes& operator=(FieldExtremes&&) noexcept;
  ~FieldExtremes();
  /// `v` must outlive this. REQUIRES: not missing. Errors: those of `work`.
  Result<void> Add(BsonValue v, ControlWork& work);
  /// One more value of a field within this one. Errors: those of `work`.
  Result<void> AddField(std::string_view name, BsonValue v, ControlWork& work);
  /// As the value `name`; nothing if nothing was added.
  void AppendTo(BsonBuilder& b, std::string_view name) const;

 private:
  struct Field;
  int sign_;
  BsonValue value_;  ///< a document or an array stands for its kind: `fields_` are what is in it
  std::vector<Field> fields_;
  ClientViewMap<size_t> by_name_;
};

/// `control.version` of the bucket documents that this server makes, and the subtype of the BinData
/// that their `data` is. 1 is the layout by field that tools restore; 2 and 3 are MongoDB's
/// compressed ones.
inline constexpr int32_t kBucketVersion = 128;
inline constexpr uint8_t kBucketSubtype = 0x80;

/// How `data` has the points: as an insert writes them, or by columns.
enum class BucketForm : uint8_t { kRows, kColumns };

/// Appends a bucket as `system.buckets.X` has it: `_id`, `control` (version 128, min, max, count;
/// the least time is the bucket's lower bound), `meta` if there is one, and `data`, BinData of
/// bucket_codec.h. `id`: 12 bytes. REQUIRES: validated points whose first value of the meta field
/// has the bytes of `meta`. Errors: InternalError beyond the limits of a bucket; 146 without room;
/// that of `check`.
Result<void> AppendBucketDocument(BsonBuilder& b, std::span<const BsonView> points,
                                  const SeriesFields& fields, std::string_view id, BsonValue meta,
                                  Instant floor, BucketForm form, const InterruptCheck& check = {});

/// The points of a bucket document in either form, one by one: what AppendBucketDocument wrote, or
/// the layout by field, of which the fields of a point come in the order of `data`, the meta field
/// last. Only the columns of wanted fields are unpacked. Keeps views of the bucket. One thread.
class BucketPoints {
 public:
  /// `wanted`: only these fields are read; null: all. Errors: BadValue 2 if the layout is neither.
  Result<void> Open(BsonView bucket, const SeriesFields& fields,
                    const std::set<std::string>* wanted = nullptr);
  /// The points of the bucket opened last; read from `data` only if `control` lacks it.
  size_t count() const { return count_; }
  /// The next point, valid until the next call; none at the end. Errors: as Open, and InternalError
  /// for damaged bytes, 146 without memory.
  Result<std::optional<BsonView>> Next();
  /// Goes past the next point, if there is one. Errors: as Open.
  Result<void> Skip();
  /// Only the points [from, to) come from now on. REQUIRES: Field has answered with values.
  void Only(size_t from, size_t to);
  /// The values of a top-level field, one for each point, missing where it has none, the first if
  /// it is there twice; null where they are not by columns, or one is a document. Valid until the
  /// next Open. Errors: as Next.
  Result<const std::vector<BsonValue>*> Field(std::string_view name);
  /// Its copies of points.
  void AddKept(large_memory::Kept* kept) const {
    kept->Add(batch_.capacity(), hold_);
    kept->bytes += point_.capacity();
  }

 private:
  struct Column {
    std::string name;  ///< with a NUL behind it, as a document has it
    BsonView::Iterator at;
    size_t point = 0;  ///< of which the value at `at` is
    bool time = false;
    Result<void> Read(size_t least, size_t count);
  };
  /// A point as the next one has it in these columns.
  Result<void> Advance(std::string* out);
  Result<void> OpenByField(BsonView bucket, const SeriesFields& fields,
                           const std::set<std::string>* wanted);
  Result<void> FillBatch();
  Result<void> OpenReader();

  // For the layout by field:
  std::vector<Column> columns_;
  std::string meta_;   ///< the element that ends each point; may be empty
  std::string point_;  ///< the last that came
  // For the form of AppendBucketDocument: `data_` is not empty, and unpacked with the first point.
  std::string_view data_;
  BsonValue stored_meta_;
  std::optional<BucketReader> reader_;
  bool all_ = true;
  std::vector<std::string> only_;  ///< unless `all_`
  std::string batch_;              ///< points from `batch_from_` on
  std::vector<size_t> batch_ends_;
  size_t batch_from_ = 0, batch_size_ = 1;
  large_memory::Hold hold_;  ///< of batch_

  size_t next_ = 0, end_ = 0, count_ = 0;  ///< the point that comes; behind the last that does; all
};

/// The most bytes of the points of one bucket that is unpacked at once: each point has a copy of
/// the meta value, which the bucket stores once.
inline constexpr size_t kMaxBytesOfPoints = size_t{64} << 20;

/// All points of a bucket, as BSON one after the other, with the end of each in `ends`. Errors: as
/// BucketPoints; BadValue 2 for more than kMaxBytesOfPoints in `out`. `hold`: what `out` takes is
/// charged to it.
Result<void> PointsOfBucketDocument(BsonView bucket, const SeriesFields& fields, std::string& out,
                                    std::vector<size_t>& ends, large_memory::Hold& hold);

/// The facts about a bucket document without reading its points.
struct BucketFacts {
  size_t count = 0;       ///< of points
  std::string_view data;  ///< what BucketReader::Open takes; empty: the layout by field
  bool rows = true;       ///< not by columns
};
/// Errors: BadValue 2 if the layout is unknown.
Result<BucketFacts> FactsOfBucketDocument(BsonView bucket, const SeriesFields& fields);

/// For a client's bucket document and its points: whether it has no other fields, and `control`
/// matches these points. Of the layout by field only min and max are looked at. Errors: 146 without
/// memory; that of `check`.
Result<bool> ControlIsRight(BsonView bucket, std::span<const BsonView> points,
                            const SeriesFields& fields, Instant floor,
                            const InterruptCheck& check = {});

}  // namespace mayfly
