#pragma once
#include <string_view>

#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// The option `expireReads` of createIndexes, create and collMod.
inline constexpr std::string_view kExpireReadsOption = "expireReads";
/// "exact" or "lazy". REQUIRES: not kDefault.
constexpr std::string_view ExpireReadsName(ExpireReads r) {
  return r == ExpireReads::kExact ? "exact" : "lazy";
}

/// What a clustered collection, or the buckets of a time series, say of reads past the deadline of
/// their own rule.
inline ExpireReads ExpireReadsOf(const CollectionInfo& coll) {
  const BsonValue v = coll.options.view()[kExpireReadsOption];
  if (!v.IsString()) return ExpireReads::kDefault;
  return v.String() == "exact" ? ExpireReads::kExact : ExpireReads::kLazy;
}

/// Whether a rule with this option hides what is past its deadline. `by_default`: what
/// ttlReadFilter says.
constexpr bool HidesDue(ExpireReads reads, bool by_default) {
  return reads == ExpireReads::kExact || (reads == ExpireReads::kDefault && by_default);
}

}  // namespace mayfly
