#pragma once
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly::bson_check {

/// Whether what the server makes is checked as if it came from outside: always in Debug builds and
/// in those with sanitizers, in any other when MAYFLY_CHECK_BSON=1 is in its environment at the
/// start. What is found then ends the process with a message: a client must never be able to cause
/// it.
extern const bool enabled;

/// Prints `what` and the bytes, and ends the process.
[[noreturn]] void Fail(const char* where, std::string_view what, std::string_view bytes);

/// The checks themselves, whatever `enabled` says: out of line, so that calls of the two below stay
/// small. They end the process when the bytes are not well-formed.
void DocumentSlow(std::string_view bytes, const char* where);
void ValueSlow(BsonValue v, const char* where);

/// `bytes` are one well-formed document. `where`: what made it, for the message. Nesting may be
/// deeper than a client's document: who stores or sends it looks at that.
inline void Document(std::string_view bytes, const char* where) {
  if (enabled) [[unlikely]]
    DocumentSlow(bytes, where);
}
/// The same for one value. Those above 1 MiB are left to the check of the document they end in.
inline void Value(BsonValue v, const char* where) {
  if (enabled) [[unlikely]]
    ValueSlow(v, where);
}

}  // namespace mayfly::bson_check
