#pragma once
#include <string>
#include <utility>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// A YAML configuration file as ("net.port", {"27017"}) pairs in the order written; a list has
/// several values. Errors: FileNotOpen 38, BadValue 2 with the line at fault.
Result<std::vector<std::pair<std::string, std::vector<std::string>>>> ReadConfigFile(
    const std::string& path);

}  // namespace mayfly
