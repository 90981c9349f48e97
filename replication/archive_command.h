#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// Splits a command line into its words as a shell does with plain words, '…' and "…"; a backslash
/// outside of '…' takes the next character as it is. Nothing is expanded. Errors: BadValue 2 (a
/// quote that does not end, no word).
Result<std::vector<std::string>> SplitCommandLine(std::string_view line);

/// Runs a program with `file` in place of each "{}" in its words, or behind them if there is
/// none. No shell sees it. Its standard input is empty. It gets SIGTERM after `seconds`, or as soon
/// as `stop` says so (asked ten times a second), and SIGKILL two seconds later, with all processes
/// of its group. Blocks.
/// Errors: InternalError 1: it could not be started, did not end in time, or ended with another
/// status than 0, with the end of what it wrote; InterruptedAtShutdown 11600: `stop`.
Result<void> RunArchiveCommand(const std::vector<std::string>& words, const std::string& file,
                               int64_t seconds, const std::function<bool()>& stop);

}  // namespace mayfly
