#pragma once
#include <string_view>

#include "security/crypto.h"

namespace mayfly {

inline constexpr size_t kMaxPasswordBytes = 4096;

/// SASLprep (RFC 4013) of a text that is to be stored: similar characters become one, invisible
/// ones are removed. Text of ASCII letters, digits and signs is returned as it is. Errors: BadValue
/// 2 for characters that a password may not have (control characters, those for private use,
/// unassigned ones of Unicode 3.2, left-to-right mixed with right-to-left), for what is no UTF-8,
/// and for what is longer than kMaxPasswordBytes or empty afterwards. The message never shows the
/// text. Threads: any.
Result<Secret> SaslPrep(std::string_view text);

}  // namespace mayfly
