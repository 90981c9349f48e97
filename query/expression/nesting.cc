#include "query/expression/nesting.h"

namespace mayfly {

bool NestsDeeper(BsonValue v, int levels) {
  if (levels < 0) return true;
  if (!v.IsDocument() && !v.IsArray()) return false;
  if (levels == 0) return true;
  if (v.size() < LeastBytesOfDeeper(levels)) return false;
  for (const BsonElement& e : v.Document())
    if (NestsDeeper(e.value, levels - 1)) return true;
  return false;
}

Error NestedTooDeep() {
  return {ErrorCode::kOverflow,
          "Document exceeds maximum nesting depth of " + std::to_string(kMaxValueDepth) +
              ": keep fewer documents within documents, or put a part of them into another field"};
}

}  // namespace mayfly
