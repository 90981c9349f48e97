#pragma once
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly::bson_check {

/// Whether documents that the server makes are checked like outside data: always in Debug
/// builds and builds with sanitizers, in others if MAYFLY_CHECK_BSON=1 is in the environment at
/// the start. A fault ends the process with a message: no client must ever be able to cause
/// one.
extern const bool enabled;

/// Prints `what` and the bytes, and ends the process.
[[noreturn]] void Fail(const char* where, std::string_view what, std::string_view bytes);

/// The checks themselves, whatever `enabled` says: out of line, so that calls of the two below stay
/// small. They end the process when the bytes are not well-formed.
void DocumentSlow(std::string_view bytes, const char* where);
void ValueSlow(BsonValue v, const char* where);

/// `bytes` are one well-formed document. `where`: what made it, for the message. Nesting may be
/// deeper than in a client's document: code that stores or sends it checks that.
inline void Document(std::string_view bytes, const char* where) {
  if (enabled) [[unlikely]]
    DocumentSlow(bytes, where);
}
/// The same for one value. The check of the final document covers values above 1 MiB.
inline void Value(BsonValue v, const char* where) {
  if (enabled) [[unlikely]]
    ValueSlow(v, where);
}

}  // namespace mayfly::bson_check
