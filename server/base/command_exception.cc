#include "server/base/command_exception.h"

#include <exception>
#include <new>
#include <string>

#include "protocol/bson_builder.h"
#include "server/base/log.h"

namespace mayfly {

static bool IsOutOfMemory() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

Error CommandException(Log& log, std::string_view command, std::string_view client) noexcept {
  const bool no_memory = IsOutOfMemory();
  std::string what;
  try {
    what = CurrentExceptionText();
    log.Write(
        LogSeverity::kError, LogComponent::kCommand, 9000103, "A command ended by an exception",
        BuildBson([&](BsonBuilder& b) { b.Append("command", command).Append("error", what); }),
        client);
  } catch (...) {
    // The client is told all the same.
  }
  try {
    if (no_memory)
      return {ErrorCode::kExceededMemoryLimit,
              "there is not enough memory for this operation now: ask for less at once, or try "
              "again later"};
    return {ErrorCode::kInternalError, "an unexpected failure of the server: " + what};
  } catch (...) {
    return {ErrorCode::kExceededMemoryLimit, "out of memory"};  // a text that needs none
  }
}

}  // namespace mayfly
