#include "server/dispatch/short_reads.h"

#include <algorithm>
#include <thread>

namespace mayfly {
namespace {

constexpr size_t kMaxBytes = 2048;  ///< of all documents together
constexpr int kMaxShortDepth = 16;
/// Names in these documents. Each may have every element of an array looked at.
constexpr int kMaxShortNames = 48;
/// Parts of a path that are numbers: each is a position or a name, so that the ways double.
constexpr int kMaxPositions = 3;

int Positions(std::string_view path) {
  int n = 0;
  bool begins = true;
  for (char c : path) {
    n += begins && c >= '0' && c <= '9';
    begins = c == '.';
  }
  return n;
}

/// Operators that are cheap on one or two documents. Sorted.
constexpr std::string_view kCheap[] = {
    "$addToSet", "$all",   "$and",   "$avg",  "$comment", "$count", "$elemMatch", "$eq",
    "$exists",   "$first", "$group", "$gt",   "$gte",     "$in",    "$last",      "$limit",
    "$lt",       "$lte",   "$match", "$max",  "$min",     "$mod",   "$natural",   "$ne",
    "$nin",      "$nor",   "$not",   "$or",   "$project", "$push",  "$size",      "$skip",
    "$slice",    "$sort",  "$sum",   "$type", "$unset",   "$unwind"};
static_assert(std::is_sorted(std::begin(kCheap), std::end(kCheap)));

class CommandShape {
 public:
  void Add(std::string_view s) {
    for (unsigned char c : s) hash_ = (hash_ ^ c) * 0x100000001b3u;
    hash_ = (hash_ ^ 0xFF) * 0x100000001b3u;
  }
  /// False: not cheap.
  bool Add(BsonView doc, bool array, int depth) {
    if (depth > kMaxShortDepth) return false;
    for (const BsonElement& e : doc) {
      if (!array) {
        Add(e.name);
        if (++names_ > kMaxShortNames || Positions(e.name) > kMaxPositions) return false;
        if (e.name.starts_with('$') &&
            !std::binary_search(std::begin(kCheap), std::end(kCheap), e.name))
          return false;
      }
      switch (e.value.type()) {
        case BsonType::kDocument:
        case BsonType::kArray:
          if (!Add(e.value.Document(), e.value.IsArray(), depth + 1)) return false;
          break;
        case BsonType::kRegex:
        case BsonType::kCode:
        case BsonType::kCodeWithScope:
          return false;
        default:
          break;
      }
    }
    return true;
  }
  uint32_t value() const {
    return std::max<uint32_t>(1, static_cast<uint32_t>(hash_ ^ hash_ >> 32));
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
  int names_ = 0;
};

}  // namespace

int64_t ShortReads::MostScanHelpers() {
  return std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 9) - 1;
}

bool ShortReads::ShouldTry(uint32_t shape) {
  if (shape == 0 || slice_micros.load(std::memory_order_relaxed) == 0) return false;
  Luck& luck = Of(shape);
  const uint8_t n = luck.to_worker.load(std::memory_order_relaxed);
  if (n == 0) return true;
  luck.to_worker.store(n - 1, std::memory_order_relaxed);
  return false;
}

void ShortReads::Tried(uint32_t shape, bool finished) {
  Luck& luck = Of(shape);
  const uint8_t failures = luck.failures.load(std::memory_order_relaxed);
  if (finished) {
    if (failures != 0) luck.failures.store(failures - 1, std::memory_order_relaxed);
    return;
  }
  const uint8_t now = std::min<uint8_t>(failures + 1, kMaxFailures);
  luck.failures.store(now, std::memory_order_relaxed);
  luck.to_worker.store(static_cast<uint8_t>((1u << now) - 1), std::memory_order_relaxed);
}

void ShortReads::Took(uint32_t shape, int64_t micros) {
  if (micros < slice_micros.load(std::memory_order_relaxed) / 2)
    Of(shape).to_worker.store(0, std::memory_order_relaxed);
}

uint32_t ReadShape(std::string_view command, std::string_view db, std::string_view collection,
                   std::initializer_list<BsonView> documents, std::string_view path) {
  size_t bytes = path.size();
  for (BsonView d : documents) bytes += d.size();
  if (bytes > kMaxBytes || Positions(path) > kMaxPositions) return 0;
  CommandShape shape;
  shape.Add(command);
  shape.Add(db);
  shape.Add(collection);
  for (BsonView d : documents)
    if (!shape.Add(d, false, 0)) return 0;
  if (!path.empty()) shape.Add(path);
  return shape.value();
}

}  // namespace mayfly
