#pragma once
#include <cstdint>

#include "protocol/bson_view.h"

/// What key_encoding.cc writes and key_decoding.cc reads. Grammar: key_encoding.cc.
namespace mayfly::key {

/// The first byte of an encoded value: its class. Their order is that of the types; the numbers
/// have all bytes from kClassNegativeHuge to kClassPositiveHuge. Numbers of all types share them,
/// because 1, 1.0 and NumberDecimal("1") are one key: what type it was is said by the type bits.
/// On disk: DO NOT RENUMBER.
enum Class : uint8_t {
  kClassMinKey = 0x0A,
  kClassUndefined = 0x10,
  kClassNull = 0x14,
  kClassNan = 0x16,
  kClassNegativeHuge = 0x17,
  kClassZero = 0x20,
  kClassPositiveHuge = 0x29,
  kClassString = 0x2D,
  kClassDocument = 0x32,
  kClassArray = 0x37,
  kClassBinary = 0x3C,
  kClassObjectId = 0x41,
  kClassBool = 0x46,
  kClassDate = 0x4B,
  kClassTimestamp = 0x4D,
  kClassRegex = 0x50,
  kClassDbPointer = 0x55,
  kClassCode = 0x5A,
  kClassCodeWithScope = 0x5F,
  kClassMaxKey = 0xF0,
};

/// Distinguishes values with equal keys: the types of numbers, symbols, -0.0 and NaN. It lies
/// beside the key, so that it does not take part in the order. The usual case is 0, because zeros
/// at the end are not stored. On disk: DO NOT RENUMBER.
enum TypeBit : uint8_t {
  kBitDefault = 0,
  kBitSymbol = 1,
  kBitInt64 = 2,
  kBitDecimal = 3,
  kBitNegativeZero = 4,
  kBitDouble = 5,
  kBitNan = 6,
};

/// Added to a decimal's exponent, which is then never below 0, and so is ordered by its bytes.
inline constexpr int kExponentBias = 8192;
/// Below it, twice a number's whole part and the bit for its fraction fit into 8 bytes; from here
/// on a number is `huge`.
inline constexpr double kTwo63 = 9223372036854775808.0;
/// The NaN that is read where no type bits say which one it was.
inline constexpr uint64_t kPlainNan = 0x7FF8000000000000u;

using Wide = unsigned __int128;

/// REQUIRES: n <= 38, the largest power that a Wide holds. 1 when n is negative.
constexpr Wide Power10(int n) {
  Wide r = 1;
  while (n-- > 0) r *= 10;
  return r;
}

}  // namespace mayfly::key
