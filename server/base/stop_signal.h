#pragma once
#include "protocol/error.h"

namespace mayfly {

/// Whether nobody has asked this process to end (SIGTERM, SIGINT) while both are blocked, as in
/// work that mayflyd does without serving anybody. A signal stays pending. Any thread. Errors:
/// Interrupted 11601.
Result<void> CheckNoStopSignal();

}  // namespace mayfly
