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

/// A password or token in a file that only its owner may read, without the line end. `what` begins
/// the messages, before the path: "keyFile: ". Errors: those of protocol's ReadSecretFile; BadValue
/// 2 for an empty one.
Result<std::string> ReadPasswordFile(const std::string& path, std::string_view what);
/// The same of a name, which everybody may know. Errors: FileNotOpen 38; BadValue 2 for a file that
/// is empty or larger than 4 KiB.
Result<std::string> ReadNameFile(const std::string& path);

/// Scripts that MongoDB's image would run at its first start: nothing here can run them, and nobody
/// should believe that they ran. Errors: InvalidOptions 72 with the name of one.
Result<void> CheckNoScripts(const std::string& directory);

}  // namespace mayfly
