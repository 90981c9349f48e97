#pragma once
#include <string>
#include <string_view>

#include "protocol/instant.h"

namespace mayfly {

/// A new 12-byte ObjectId: 4 bytes of `now` in seconds, 5 bytes random to this process, 3 bytes
/// counter. Threads: any.
std::string NewObjectId(Instant now);
/// 24 hexadecimal digits.
std::string ObjectIdToHex(std::string_view oid12);

}  // namespace mayfly
