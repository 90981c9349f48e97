#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/varint.h"

namespace mayfly {

/// InternalError: what is wrong with the bytes of a bucket.
Error DamagedBucket(std::string_view what);

/// `bytes` compressed by zstd, or as they are where that is not smaller:
/// raw_size:varint stored_size:varint bytes; equal sizes mean as they are.
void PutCompressed(std::string& out, std::string_view bytes);

/// Compressed with zstd at its fastest level, for streams of small numbers. Empty when the result
/// would not be smaller than `limit` bytes.
std::string CompressIfBelow(std::string_view bytes, size_t limit);

/// The memory for decoding one bucket: bytes are charged before they are allocated, to its own
/// limit and to the server's budget for large values. One thread at a time.
class DecodeBudget {
 public:
  explicit DecodeBudget(size_t limit) : limit_(limit) {}
  /// `bytes` more. Errors: InternalError beyond the bucket's limit (a damaged bucket), 146 when the
  /// server has no room.
  Result<void> Charge(size_t bytes);
  size_t used() const { return used_; }

 private:
  size_t limit_, used_ = 0;
  large_memory::Hold hold_;
};

/// Reads the bytes of a bucket in order. A read fails if too few bytes are left, and then all later
/// reads fail too, so several can be made before one check of ok(). Does not own.
class BucketBytes {
 public:
  explicit BucketBytes(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool ok() const { return ok_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  /// All was read, and nothing is missing.
  bool done() const { return ok_ && at_ == end_; }
  /// The next byte.
  uint8_t Byte() {
    if (!ok_ || at_ == end_) [[unlikely]] {
      ok_ = false;
      return 0;
    }
    return static_cast<uint8_t>(*at_++);
  }
  /// What PutVarint wrote.
  uint64_t Varint() {
    // Most are small, and not the last bytes.
    if (end_ - at_ >= 2) [[likely]] {
      const auto first = static_cast<uint8_t>(at_[0]), second = static_cast<uint8_t>(at_[1]);
      if (ok_ && first < 0x80) {
        ++at_;
        return first;
      }
      if (ok_ && second < 0x80) {
        at_ += 2;
        return static_cast<uint64_t>(first & 0x7F) | static_cast<uint64_t>(second) << 7;
      }
    }
    return LongVarint();
  }
  int64_t Signed() { return UnZigZag(Varint()); }
  /// A varint of at most `most`; fails otherwise.
  uint64_t VarintUpTo(uint64_t most);
  /// The next `n` bytes; empty on failure.
  std::string_view Take(size_t n);
  std::string_view Text() { return Take(Varint()); }
  void Fail() { ok_ = false; }

 private:
  uint64_t LongVarint();

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

/// What PutCompressed wrote. The bytes are charged to `budget`; those that are not compressed are
/// copied all the same, so that the result owns them.
Result<std::string> TakeCompressed(BucketBytes& in, DecodeBudget& budget);
/// Unpacks a zstd frame that must have exactly `size` bytes, which are charged.
Result<std::string> Decompress(std::string_view frame, size_t size, DecodeBudget& budget);

}  // namespace mayfly
