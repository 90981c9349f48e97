#include "timeseries/bucket_bytes.h"

#include <zstd.h>

#include <memory>

namespace mayfly {
namespace {

constexpr int kFastLevel = 1, kTextLevel = 3;

/// Contexts are kept by their thread: making one costs more than a small column.
ZSTD_CCtx* CompressContext() {
  thread_local const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                                  &ZSTD_freeCCtx);
  return context.get();
}
ZSTD_DCtx* DecompressContext() {
  thread_local const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                                  &ZSTD_freeDCtx);
  return context.get();
}

/// Empty when the result is not below `limit` bytes.
std::string Compressed(std::string_view bytes, size_t limit, int level) {
  std::string out;
  if (limit < 2) return out;
  out.resize(limit - 1);
  const size_t n = ZSTD_compressCCtx(CompressContext(), out.data(), out.size(), bytes.data(),
                                     bytes.size(), level);
  out.resize(ZSTD_isError(n) ? 0 : n);
  return out;
}

}  // namespace

Error DamagedBucket(std::string_view what) {
  return Error{ErrorCode::kInternalError,
               "a bucket of a time-series collection is damaged: " + std::string(what)};
}

void PutCompressed(std::string& out, std::string_view bytes) {
  PutVarint(out, bytes.size());
  // Below this the frame's own header is larger than what it saves.
  constexpr size_t kWorthwhile = 24;
  const std::string packed =
      bytes.size() < kWorthwhile ? std::string() : Compressed(bytes, bytes.size(), kTextLevel);
  PutText(out, packed.empty() ? bytes : packed);
}

std::string CompressIfBelow(std::string_view bytes, size_t limit) {
  return Compressed(bytes, limit, kFastLevel);
}

Result<void> DecodeBudget::Charge(size_t bytes) {
  if (bytes > limit_ - used_) return DamagedBucket("it unpacks to more than a bucket may have");
  used_ += bytes;
  return hold_.Set(used_);
}

uint64_t BucketBytes::LongVarint() {
  uint64_t v = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = Byte();
    if (!ok_) return 0;
    v |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return v;
  }
  ok_ = false;
  return 0;
}

uint64_t BucketBytes::VarintUpTo(uint64_t most) {
  const uint64_t v = Varint();
  if (v <= most) return v;
  ok_ = false;
  return 0;
}

std::string_view BucketBytes::Take(size_t n) {
  if (!ok_ || n > left()) {
    ok_ = false;
    return {};
  }
  const std::string_view bytes(at_, n);
  at_ += n;
  return bytes;
}

Result<std::string> Decompress(std::string_view frame, size_t size, DecodeBudget& budget) {
  MAYFLY_TRY(budget.Charge(size));
  std::string out(size, '\0');
  const size_t n =
      ZSTD_decompressDCtx(DecompressContext(), out.data(), size, frame.data(), frame.size());
  if (ZSTD_isError(n) || n != size) return DamagedBucket("a compressed part cannot be unpacked");
  return out;
}

Result<std::string> TakeCompressed(BucketBytes& in, DecodeBudget& budget) {
  const uint64_t size = in.Varint();
  const std::string_view stored = in.Text();
  if (!in.ok() || stored.size() > size) return DamagedBucket("a compressed part is cut");
  if (stored.size() < size) return Decompress(stored, size, budget);
  MAYFLY_TRY(budget.Charge(size));
  return std::string(stored);
}

}  // namespace mayfly
