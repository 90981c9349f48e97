#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"

namespace mayfly {

/// What stands in place of a secret.
inline constexpr std::string_view kRedacted = "xxx";

/// Whether the field of this command carries a secret: passwords of users, messages of a login.
bool IsSecretField(std::string_view command, std::string_view field);

/// Whether commands of this name may have secrets, or hold a command that has.
bool HoldsSecrets(std::string_view command);

/// The command with kRedacted in place of its secrets, also of those in a command that it contains
/// (`explain`) and of a login in `hello`: for logs, currentOp, the profiler and messages. A command
/// without secrets comes back as it is.
BsonDocument RedactedCommand(BsonView command);

/// The same as one line of text for a message, of at most about kShortCommand bytes: what is larger
/// is named and left out, so that it costs the same for a command of 48 MB.
inline constexpr size_t kShortCommand = 1000;
std::string ShortCommandText(BsonView command);

}  // namespace mayfly
