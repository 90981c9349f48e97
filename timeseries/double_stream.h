#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "timeseries/bucket_bytes.h"
#include "timeseries/integer_stream.h"

namespace mayfly {

/// Doubles in few bits, every bit kept (-0.0, NaN with its payload). Given and returned as their
/// bits. Decimal fractions of few digits, and whole numbers, become integers; others what changes
/// from one to the next (exclusive or, as Facebook's Gorilla stores them).
///
///   doubles  := 0:u8 bits:le64*                                    as they are
///             | 1:u8 digits:u8 n:varint (gap:varint bits:le64){n} integers
///                                        value = integer / 10^digits, but for n exceptions, each
///                                        `gap` places behind the one before
///             | 2:u8 size:varint xors
///             | 3:u8 bits:le64                                     all the same
///   xors     := bits:64 xor*             a stream of bits, the highest of each byte first
///   xor      := 0                        the value before
///             | 10 changed               in place of the xor before
///             | 11 leading:6 length-1:6 changed
void PutDoubles(std::string& out, std::span<const uint64_t> values);

/// `count` doubles that PutDoubles wrote, of which those from the place `from` to before `until` are
/// wanted: the others are left out. REQUIRES: count <= kMaxColumnValues. Errors: damage, budget.
Result<std::vector<uint64_t>> TakeDoubles(BucketBytes& in, size_t count, DecodeBudget& budget,
                                          size_t until = kMaxColumnValues, size_t from = 0);

}  // namespace mayfly
