#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

inline constexpr size_t kMaxMemberKeys = 4;  ///< that one key file may have

/// The keys of a key file, white space taken out: one, or several while they are rotated (manual:
/// "Rotate Keys for Self-Managed Replica Sets"), as a YAML sequence (`- key`) or in quotes. Errors:
/// those of ReadSecretFile; BadValue 2, which names the file and no key.
Result<std::vector<std::string>> ReadKeyFile(const std::string& path);
/// The same of its text; `path` is for messages.
Result<std::vector<std::string>> ParseKeyFile(std::string_view text, const std::string& path);

}  // namespace mayfly
