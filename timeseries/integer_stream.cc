#include "timeseries/integer_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace mayfly {
namespace {

constexpr size_t kBlock = 128;
constexpr uint8_t kZero = 0, kBlocks = 1, kBytes = 2, kSame = 3;

/// a - b as the machine has it.
int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

size_t VarintSize(uint64_t v) {
  return v == 0 ? 1 : (static_cast<size_t>(std::bit_width(v)) + 6) / 7;
}

struct Block {
  int64_t base;
  int width;
};
Block Measure(std::span<const int64_t> values) {
  int64_t low = values[0], high = values[0];
  for (const int64_t v : values) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return {low, static_cast<int>(std::bit_width(range))};
}

/// Bytes that PutBlocks writes.
size_t BlocksSize(std::span<const int64_t> values) {
  size_t size = 0;
  for (size_t at = 0; at < values.size(); at += kBlock) {
    const auto part = values.subspan(at, std::min(kBlock, values.size() - at));
    const Block b = Measure(part);
    size += VarintSize(ZigZag(b.base)) + 1 + (part.size() * static_cast<size_t>(b.width) + 7) / 8;
  }
  return size;
}

void PutBlock(std::string& out, std::span<const int64_t> values) {
  const Block b = Measure(values);
  PutSigned(out, b.base);
  out.push_back(static_cast<char>(b.width));
  unsigned __int128 pending = 0;
  int bits = 0;
  for (const int64_t v : values) {
    pending |= static_cast<unsigned __int128>(static_cast<uint64_t>(Minus(v, b.base))) << bits;
    bits += b.width;
    if (bits >= 64) {
      const auto word = static_cast<uint64_t>(pending);
      out.append(reinterpret_cast<const char*>(&word), 8);
      pending >>= 64;
      bits -= 64;
    }
  }
  const auto word = static_cast<uint64_t>(pending);
  out.append(reinterpret_cast<const char*>(&word), static_cast<size_t>(bits + 7) / 8);
}

/// So wide a value is in eight bytes, at whichever bit of the first it begins.
constexpr int kNarrow = 57;

/// The first values of a block of any width.
void TakeWide(std::string_view bytes, int64_t base, int width, std::span<int64_t> values) {
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  unsigned __int128 pending = 0;
  int bits = 0;
  size_t at = 0;
  for (int64_t& v : values) {
    if (bits < width) {
      uint64_t word = 0;
      const size_t n = std::min<size_t>(8, bytes.size() - at);
      std::memcpy(&word, bytes.data() + at, n);
      pending |= static_cast<unsigned __int128>(word) << bits;
      bits += 64;
      at += n;
    }
    v = Plus(base, static_cast<int64_t>(static_cast<uint64_t>(pending) & mask));
    pending >>= width;
    bits -= width;
  }
}

/// A block of `count` values, of which the first ones are wanted.
Result<void> TakeBlock(BucketBytes& in, size_t count, std::span<int64_t> values) {
  const int64_t base = in.Signed();
  const int width = in.Byte();
  if (!in.ok() || width > 64) return DamagedBucket("a block of integers");
  const std::string_view bytes = in.Take((count * static_cast<size_t>(width) + 7) / 8);
  if (!in.ok()) return DamagedBucket("a block of integers is cut");
  if (values.empty()) return Ok();
  if (width > kNarrow) {
    TakeWide(bytes, base, width, values);
    return Ok();
  }
  // With room behind, so that each value is in one word of eight bytes.
  std::array<char, kBlock * kNarrow / 8 + 8> padded;
  const size_t used = (values.size() * static_cast<size_t>(width) + 7) / 8;
  std::memcpy(padded.data(), bytes.data(), used);
  std::memset(padded.data() + used, 0, 8);
  const uint64_t mask = (uint64_t{1} << width) - 1;
  size_t bit = 0;
  for (int64_t& v : values) {
    uint64_t word = 0;
    std::memcpy(&word, padded.data() + bit / 8, 8);
    v = Plus(base, static_cast<int64_t>(word >> (bit % 8) & mask));
    bit += static_cast<size_t>(width);
  }
  return Ok();
}

/// Zigzags as varints through zstd, if that is below `limit` bytes; the size before in *raw.
std::string PackBytes(std::span<const int64_t> values, size_t limit, size_t* raw) {
  thread_local std::string bytes;
  bytes.clear();
  for (const int64_t v : values) {
    PutVarint(bytes, ZigZag(v));
    // If it is much larger than the bits, zstd cannot make it small enough.
    if (bytes.size() > 8 * limit) return {};
  }
  *raw = bytes.size();
  const size_t head = VarintSize(*raw) + 2;
  return limit <= head ? std::string() : CompressIfBelow(bytes, limit - head);
}

/// `count` values, of which the first ones are wanted.
Result<void> UnpackBytes(BucketBytes& in, size_t count, std::span<int64_t> values,
                         DecodeBudget& budget) {
  const uint64_t size = in.VarintUpTo(10 * count);
  const std::string_view frame = in.Text();
  if (!in.ok()) return DamagedBucket("integers are cut");
  MAYFLY_TRY(const std::string bytes, Decompress(frame, size, budget));
  BucketBytes unpacked(bytes);
  for (int64_t& v : values) v = unpacked.Signed();
  if (!unpacked.ok() || (values.size() == count && !unpacked.done()))
    return DamagedBucket("too few or too many integers");
  return Ok();
}

}  // namespace

void PutIntegers(std::string& out, std::span<const int64_t> values) {
  // The values, and their differences of both orders; one buffer each, kept by the thread.
  thread_local std::array<std::vector<int64_t>, 2> differences;
  std::span<const int64_t> orders[3] = {values, {}, {}};
  for (size_t order = 1; order < 3; ++order) {
    const auto before = orders[order - 1];
    if (before.size() < 2) break;
    auto& now = differences[order - 1];
    now.resize(before.size() - 1);
    for (size_t i = 1; i < before.size(); ++i) now[i - 1] = Minus(before[i], before[i - 1]);
    orders[order] = now;
  }
  size_t best = 0, best_size = BlocksSize(values);
  for (size_t order = 1; order < 3 && !orders[order].empty(); ++order) {
    size_t size = BlocksSize(orders[order]);
    for (size_t i = 0; i < order; ++i) size += VarintSize(ZigZag(orders[i][0]));
    if (size < best_size) best = order, best_size = size;
  }
  const auto rest = orders[best];
  const auto put_mode = [&](uint8_t packing) {
    out.push_back(static_cast<char>(best | packing << 4));
    for (size_t i = 0; i < best; ++i) PutSigned(out, orders[i][0]);
  };
  const bool same = std::all_of(rest.begin(), rest.end(), [&](int64_t v) { return v == rest[0]; });
  if (rest.empty() || (same && rest[0] == 0)) return put_mode(kZero);
  if (same) {
    put_mode(kSame);
    PutSigned(out, rest[0]);
    return;
  }
  // A few bytes are not worth a frame of zstd.
  constexpr size_t kWorthwhile = 32;
  size_t raw = 0;
  if (best_size >= kWorthwhile) {
    const std::string frame = PackBytes(rest, best_size - best_size / 8, &raw);
    if (!frame.empty()) {
      put_mode(kBytes);
      PutVarint(out, raw);
      PutText(out, frame);
      return;
    }
  }
  put_mode(kBlocks);
  for (size_t at = 0; at < rest.size(); at += kBlock)
    PutBlock(out, rest.subspan(at, std::min(kBlock, rest.size() - at)));
}

Result<std::vector<int64_t>> TakeIntegers(BucketBytes& in, size_t count, DecodeBudget& budget,
                                          size_t until) {
  until = std::min(until, count);
  MAYFLY_TRY(budget.Charge(until * sizeof(int64_t)));
  const uint8_t mode = in.Byte();
  const size_t order = mode & 0xF;
  const uint8_t packing = mode >> 4;
  if (!in.ok() || order > 2 || order > count || packing > kSame)
    return DamagedBucket("integers of an unknown kind");
  std::vector<int64_t> values(until, 0);
  for (size_t i = 0; i < order; ++i) {
    const int64_t head = in.Signed();
    if (i < until) values[i] = head;
  }
  if (!in.ok()) return DamagedBucket("integers are cut");
  const std::span<int64_t> rest = std::span(values).subspan(std::min(order, until));
  const size_t packed = count - order;
  if (packing == kSame) {
    std::fill(rest.begin(), rest.end(), in.Signed());
    if (!in.ok()) return DamagedBucket("integers are cut");
  } else if (packing == kBytes) {
    MAYFLY_TRY(UnpackBytes(in, packed, rest, budget));
  } else if (packing == kBlocks) {
    for (size_t at = 0; at < packed; at += kBlock) {
      const size_t n = std::min(kBlock, packed - at), from = std::min(at, rest.size());
      MAYFLY_TRY(TakeBlock(in, n, rest.subspan(from, std::min(n, rest.size() - from))));
    }
  }
  // Sums of sums, the innermost first: heads stand before the differences they began.
  for (size_t from = order; from > 0; --from)
    for (size_t i = from; i < until; ++i) values[i] = Plus(values[i], values[i - 1]);
  return values;
}

}  // namespace mayfly
