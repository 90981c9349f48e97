#include "server/base/stop_signal.h"

#include <signal.h>

namespace mayfly {

Result<void> CheckNoStopSignal() {
  sigset_t waiting;
  sigemptyset(&waiting);
  if (::sigpending(&waiting) != 0 ||
      (sigismember(&waiting, SIGTERM) != 1 && sigismember(&waiting, SIGINT) != 1))
    return Ok();
  return Error{ErrorCode::kInterrupted, "it was asked to end by a signal"};
}

}  // namespace mayfly
