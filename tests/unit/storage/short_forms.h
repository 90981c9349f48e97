#pragma once
#include <string_view>

#include "protocol/error.h"
#include "protocol/extended_json.h"

namespace mayfly::testing {

inline BsonDocument Json(std::string_view text) { return ParseJson(text).value(); }

/// kOk when there is no error.
template <class T>
ErrorCode CodeOf(const Result<T>& r) {
  return r ? ErrorCode::kOk : r.error().code;
}

}  // namespace mayfly::testing
