#pragma once
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly::privileges {

/// A value's text, empty if it is none. Names out of a request are only compared with those in
/// privileges here, so it does not matter what is in them.
inline std::string_view Text(BsonValue v) { return v.IsString() ? v.String() : std::string_view(); }

}  // namespace mayfly::privileges
