#pragma once
#include <string>
#include <utility>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// A configuration file as pairs in the order written. YAML: ("net.port", {"27017"}); a list has
/// several values. The older format, a line `port = 27017` for each flag: ("--port", {"27017"}),
/// with all values that the flag is given. Errors: FileNotOpen 38, BadValue 2 with the line at
/// fault.
Result<std::vector<std::pair<std::string, std::vector<std::string>>>> ReadConfigFile(
    const std::string& path);

}  // namespace mayfly
