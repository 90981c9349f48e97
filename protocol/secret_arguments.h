#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// Asks at the terminal, without showing what is typed. Errors: InvalidOptions 72 when there is no
/// terminal, or nothing was typed. Blocks. `what` completes "Enter the password of the key in …".
Result<std::string> AskPassword(std::string_view what);

/// Writes over the values of these options ("--name value", "--name=value") where the system shows
/// them to everybody (`ps`). Before other threads.
void HideArguments(int argc, char** argv, const std::vector<std::string_view>& options);

/// Keeps secrets for the program that this process becomes by exec, where nobody else sees them: in
/// a pipe that it inherits. False: that failed. Once.
bool LeaveSecrets(const std::vector<std::string>& secrets);
/// What LeaveSecrets has left; empty without. Once, before other threads.
std::vector<std::string> TakeLeftSecrets();

}  // namespace mayfly
