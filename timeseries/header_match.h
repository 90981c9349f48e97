#pragma once
#include <string_view>

#include "timeseries/bucket_header.h"

namespace mayfly {

/// Conditions on one path that a header can decide.
enum class HeaderCondition { kEq, kNe, kGt, kGte, kLt, kLte, kIn, kNin, kExists, kNotExists };

/// False only if no point of the bucket can match `path condition operand` as the filter language
/// has it (types bracketed, arrays element by element, null for what is missing): the bucket need
/// not be unpacked then. True decides nothing. `path`: dotted; one that begins with the meta field
/// is always true, since the filter itself decides that, on the header's meta value. `operand`: of
/// kIn and kNin an array, of the last two anything. `collated`: strings are compared by a collation
/// other than the simple one, so that bytes decide nothing about them. Threads: any.
bool MayMatch(const BucketHeader& header, const SeriesFields& fields, std::string_view path,
              HeaderCondition condition, BsonValue operand, bool collated = false);

}  // namespace mayfly
