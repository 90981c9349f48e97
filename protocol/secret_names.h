#pragma once
#include <string_view>

namespace mayfly {

// Names of fields that hold secrets. ShownCommand and the functions beside it decide what is shown
// of a command or a document (server/dispatch/redacted_command.h); this is for those who have a
// name or a text alone. Threads: any.

/// The replacement for a secret.
inline constexpr std::string_view kRedacted = "xxx";

/// Whether a field of this name holds a password or a credential, in whatever command and however
/// deep; "a.b" is a path, of which any part may. Numbers and booleans under such a name are shown:
/// the order of an index, a projection.
bool IsSecretName(std::string_view field);

/// Whether `part`, in lower case, is in the text, whatever the case of that.
bool ContainsLower(std::string_view text, std::string_view part);

/// Whether a text, like the message of an error, quotes a document with such a field: `{ password:
/// "x" }`, with or without quotes around the name. Takes one pass, however long it is.
bool QuotesSecret(std::string_view text);

/// The text, or kRedacted if it quotes a secret. A view into `text`.
inline std::string_view WithoutSecret(std::string_view text) {
  return QuotesSecret(text) ? kRedacted : text;
}

}  // namespace mayfly
