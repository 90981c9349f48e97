#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "timeseries/bucket_bytes.h"

namespace mayfly {

/// The most values of a column, and points of a bucket: bounds the memory of a decoder.
inline constexpr size_t kMaxColumnValues = 1 << 16;

/// Integers in few bits: as they are, or the differences between neighbours, or the differences of
/// those (what is sampled at even intervals costs almost nothing), whichever is smallest; then in
/// blocks of 128 with the bits that the block's widest value needs, or as bytes through zstd where
/// that is smaller by an eighth: reading it takes several times as long. Any int64 is allowed;
/// arithmetic wraps around.
///
///   integers := mode:u8 heads packed            the number of values is known
///   mode     := order | packing << 4            order 0, 1, 2: how often differences were taken
///   heads    := zigzag{min(order, values)}      the first value of each difference
///   packed   := (nothing)                       packing 0: all that is left is zero
///             | block*                          packing 1
///             | size:varint zstd                packing 2: frame of `size` bytes, zigzags
///             | zigzag                          packing 3: all that is left is this value
///   block    := base:zigzag width:u8 bits       value - base, `width` bits each, lowest bit first
void PutIntegers(std::string& out, std::span<const int64_t> values);

/// `count` integers that PutIntegers wrote, of which the first `until` are wanted: the others are
/// left out, and not looked at. REQUIRES: count <= kMaxColumnValues. Errors: damage, budget.
Result<std::vector<int64_t>> TakeIntegers(BucketBytes& in, size_t count, DecodeBudget& budget,
                                          size_t until = kMaxColumnValues);

}  // namespace mayfly
