#include "replication/patient_writes.h"

#include <chrono>
#include <string>

namespace mayfly {
namespace {
constexpr auto kTryAgain = std::chrono::milliseconds(100);
}

Result<void> PatientWrites::Await(const Error& why, const std::function<Result<void>()>& attempt,
                                  const std::function<void()>& meanwhile) {
  if (waiting_.fetch_add(1) == 0)
    log_('E',
         "The replication log cannot be written now. This member acknowledges nothing and does "
         "not lead until it can: " +
             why.message);
  Result<void> result = why;
  while (!result && MaySucceedLater(result.error())) {
    {
      std::unique_lock l(mutex_);
      if (wake_.wait_for(l, kTryAgain, [&] { return stop_; })) {
        result = Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"};
        break;
      }
    }
    if (meanwhile) meanwhile();
    result = attempt();
  }
  if (waiting_.fetch_sub(1) == 1 && result) log_('I', "The replication log is written again");
  return result;
}

void PatientWrites::Stop() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

}  // namespace mayfly
