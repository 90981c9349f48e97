#include "timeseries/double_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "timeseries/integer_stream.h"

namespace mayfly {
namespace {

constexpr uint8_t kRawDoubles = 0, kDecimalDoubles = 1, kXorDoubles = 2, kSameDoubles = 3;
constexpr int kMostDigits = 12;
constexpr std::array<double, kMostDigits + 1> kPower = {1,   1e1, 1e2, 1e3,  1e4,  1e5, 1e6,
                                                        1e7, 1e8, 1e9, 1e10, 1e11, 1e12};
/// Beyond this a double has no room for a fraction, and the integer may not be exact.
constexpr double kMostInteger = 4503599627370496.0;

/// The integer that stands for the value; false if none gives exactly its bits back.
bool ToInteger(uint64_t bits, int digits, int64_t* out) {
  const double v = std::bit_cast<double>(bits);
  const double scaled = v * kPower[static_cast<size_t>(digits)];
  if (!(std::fabs(scaled) < kMostInteger)) return false;  // a NaN too
  const auto n = static_cast<int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double back = static_cast<double>(n) / kPower[static_cast<size_t>(digits)];
  *out = n;
  return std::bit_cast<uint64_t>(back) == bits;
}

/// The fewest digits that do for nearly all of a sample; kMostDigits + 1 if there are none.
int FindDigits(std::span<const uint64_t> values) {
  constexpr size_t kSample = 32;
  const size_t step = std::max<size_t>(1, values.size() / kSample);
  int digits = 0;
  size_t seen = 0, bad = 0;
  for (size_t i = 0; i < values.size(); i += step) {
    ++seen;
    int64_t unused;
    int d = digits;
    while (d <= kMostDigits && !ToInteger(values[i], d, &unused)) ++d;
    if (d <= kMostDigits) digits = d;
    if (d > kMostDigits) ++bad;
  }
  return bad * 8 > seen ? kMostDigits + 1 : digits;
}

/// False, and nothing written, when there are many values that are no such fractions.
bool PutDecimals(std::string& out, std::span<const uint64_t> values) {
  const int digits = FindDigits(values);
  if (digits > kMostDigits) return false;
  std::vector<int64_t> integers(values.size());
  std::string exceptions;
  size_t count = 0, last = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (ToInteger(values[i], digits, &integers[i])) continue;
    if (++count * 8 > values.size()) return false;
    integers[i] = i == 0 ? 0 : integers[i - 1];
    PutVarint(exceptions, i - last);
    exceptions.append(reinterpret_cast<const char*>(&values[i]), 8);
    last = i;
  }
  out.push_back(static_cast<char>(kDecimalDoubles));
  out.push_back(static_cast<char>(digits));
  PutVarint(out, count);
  out.append(exceptions);
  PutIntegers(out, integers);
  return true;
}

/// Bits into bytes, the highest first.
class BitWriter {
 public:
  explicit BitWriter(std::string& out) : out_(&out) {}
  /// The lowest `n` bits of `v`. REQUIRES: n <= 64 and nothing above them.
  void Put(uint64_t v, int n) {
    pending_ = pending_ << n | v;
    bits_ += n;
    while (bits_ >= 8) {
      bits_ -= 8;
      out_->push_back(static_cast<char>(pending_ >> bits_));
    }
  }
  void Finish() {
    if (bits_ > 0) Put(0, 8 - bits_);
  }

 private:
  std::string* out_;
  unsigned __int128 pending_ = 0;
  int bits_ = 0;
};

/// The reverse; beyond the end there are zeros, and ok() is false.
class BitReader {
 public:
  explicit BitReader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t Take(int n) {
    while (bits_ < n) {
      if (at_ == bytes_.size()) ok_ = false;
      const uint8_t next = at_ < bytes_.size() ? static_cast<uint8_t>(bytes_[at_++]) : 0;
      pending_ = pending_ << 8 | next;
      bits_ += 8;
    }
    bits_ -= n;
    const uint64_t mask = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    return static_cast<uint64_t>(pending_ >> bits_) & mask;
  }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  unsigned __int128 pending_ = 0;
  int bits_ = 0;
  bool ok_ = true;
};

std::string Xors(std::span<const uint64_t> values) {
  std::string bits;
  BitWriter w(bits);
  w.Put(values[0], 64);
  int leading = 64, trailing = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const uint64_t changed = values[i] ^ values[i - 1];
    if (changed == 0) {
      w.Put(0, 1);
      continue;
    }
    const int lead = std::countl_zero(changed), trail = std::countr_zero(changed);
    // A new place costs twelve bits: worth it when the one before wastes more.
    if (lead >= leading && trail >= trailing && lead - leading + trail - trailing < 12) {
      w.Put(2, 2);
    } else {
      leading = lead, trailing = trail;
      w.Put(3, 2);
      w.Put(static_cast<uint64_t>(lead), 6);
      w.Put(static_cast<uint64_t>(64 - lead - trail - 1), 6);
    }
    w.Put(changed >> trailing, 64 - leading - trailing);
  }
  w.Finish();
  return bits;
}

Result<void> TakeXors(std::string_view bits, std::span<uint64_t> values) {
  BitReader r(bits);
  uint64_t last = r.Take(64);
  int trailing = 0, length = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && r.Take(1) == 1) {
      if (r.Take(1) == 1) {
        const int leading = static_cast<int>(r.Take(6));
        length = static_cast<int>(r.Take(6)) + 1;
        if (leading + length > 64) return DamagedBucket("doubles");
        trailing = 64 - leading - length;
      }
      if (length == 0) return DamagedBucket("doubles");
      last ^= r.Take(length) << trailing;
    }
    values[i] = last;
  }
  return r.ok() ? Result<void>(Ok()) : DamagedBucket("doubles are cut");
}

/// `count` values, of which those from the place `from` on are wanted.
Result<void> TakeDecimals(BucketBytes& in, size_t count, size_t from, std::span<uint64_t> values,
                          DecodeBudget& budget) {
  const auto digits = in.VarintUpTo(kMostDigits);
  const size_t exceptions = in.VarintUpTo(count);
  // Written last, when the integers are there: until then this is where they are.
  BucketBytes at = in;
  for (size_t i = 0; i < exceptions; ++i) {
    in.Varint();
    in.Take(8);
  }
  if (!in.ok()) return DamagedBucket("doubles are cut");
  MAYFLY_TRY(const std::vector<int64_t> integers,
             TakeIntegers(in, count, budget, from + values.size()));
  const double power = kPower[static_cast<size_t>(digits)];
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<uint64_t>(static_cast<double>(integers[from + i]) / power);
  size_t place = 0;
  for (size_t i = 0; i < exceptions; ++i) {
    const uint64_t gap = at.Varint();
    if (gap >= count - place) return DamagedBucket("doubles");
    place += gap;
    if (place >= from + values.size()) break;
    const uint64_t bits = LoadLe<uint64_t>(at.Take(8).data());
    if (place >= from) values[place - from] = bits;
  }
  return Ok();
}

}  // namespace

void PutDoubles(std::string& out, std::span<const uint64_t> values) {
  const auto put_bits = [&](uint64_t v) { out.append(reinterpret_cast<const char*>(&v), 8); };
  if (std::all_of(values.begin(), values.end(), [&](uint64_t v) { return v == values[0]; })) {
    out.push_back(static_cast<char>(kSameDoubles));
    put_bits(values.empty() ? 0 : values[0]);
    return;
  }
  if (PutDecimals(out, values)) return;
  const std::string bits = Xors(values);
  if (bits.size() < values.size() * 8) {
    out.push_back(static_cast<char>(kXorDoubles));
    PutText(out, bits);
    return;
  }
  out.push_back(static_cast<char>(kRawDoubles));
  for (const uint64_t v : values) put_bits(v);
}

Result<std::vector<uint64_t>> TakeDoubles(BucketBytes& in, size_t count, DecodeBudget& budget,
                                          size_t until, size_t from) {
  until = std::min(until, count);
  from = std::min(from, until);
  MAYFLY_TRY(budget.Charge(until * sizeof(uint64_t)));
  std::vector<uint64_t> values(until - from);
  switch (in.Byte()) {
    case kRawDoubles: {
      const std::string_view bytes = in.Take(count * 8);
      if (in.ok() && !values.empty())
        std::memcpy(values.data(), bytes.data() + from * 8, values.size() * 8);
      break;
    }
    case kDecimalDoubles: {
      MAYFLY_TRY(TakeDecimals(in, count, from, values, budget));
      break;
    }
    case kXorDoubles: {
      const std::string_view bits = in.Text();
      if (!in.ok()) break;
      values.resize(until);  // each is what changed since the one before
      MAYFLY_TRY(TakeXors(bits, values));
      values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(from));
      break;
    }
    case kSameDoubles: {
      const std::string_view bytes = in.Take(8);
      if (in.ok()) std::fill(values.begin(), values.end(), LoadLe<uint64_t>(bytes.data()));
      break;
    }
    default:
      in.Fail();
  }
  if (!in.ok()) return DamagedBucket("doubles");
  return values;
}

}  // namespace mayfly
