#pragma once
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

class Log;

/// Inside a catch block: logs the exception, by which a command has ended, and answers what the
/// client is told: ExceededMemoryLimit 146 when there was no memory, else InternalError 1, for it
/// is a bug of ours. Throws nothing itself, also where there is no memory to say so: whoever calls
/// it may be on a thread that must not be left by an exception. `client`: its ClientSlot::desc. Any
/// thread.
Error CommandException(Log& log, std::string_view command, std::string_view client) noexcept;

}  // namespace mayfly
