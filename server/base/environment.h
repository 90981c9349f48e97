#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// The variable of an option: "--tlsCAFile" is MAYFLYD_TLS_CA_FILE.
std::string VariableOfOption(std::string_view flag);

/// Names and values of the variables whose names begin with `prefix`, sorted.
std::vector<std::pair<std::string, std::string>> VariablesWith(std::string_view prefix);

/// Takes a password out of the environment: the system shows it to nobody any more, and programs
/// that this process starts do not get it. Before other threads.
void HideVariable(const std::string& name);

/// The content of a file with a secret, without the line end. Errors: FileNotOpen 264 with the
/// system's words; BadValue 2 for one that is empty or larger than 4 KiB.
Result<std::string> ReadSecretFile(const std::string& path);

/// Scripts that MongoDB's image would run at its first start: nothing here can run them, and nobody
/// should believe that they ran. Errors: InvalidOptions 72 with the name of one.
Result<void> CheckNoScripts(const std::string& directory);

}  // namespace mayfly
