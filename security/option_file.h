#pragma once
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

/// An option names a file that cannot be used. InvalidOptions 72.
inline Error BadFile(std::string_view option, const std::string& path, std::string_view why) {
  return InvalidOptions(std::string(option) + ": " + path + ": " + std::string(why));
}

}  // namespace mayfly
