#include "storage/kv/thread_scheduling.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace mayfly {
namespace {

/// The first version of the kernel's struct sched_attr, see sched_setattr(2); its header cannot be
/// included beside the C library's.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // nanoseconds
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

void UseShortTimeSlices() {
  SchedulingAttributes a{};
  if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0) return;
  if (a.policy != 0) return;  // not SCHED_OTHER: somebody has chosen for this process
  a.size = sizeof a;
  a.runtime = 100'000;  // the least there is
  syscall(SYS_sched_setattr, 0, &a, 0);
}

void UseBackgroundScheduling(int nice) {
  const auto thread = static_cast<id_t>(gettid());
  if (getpriority(PRIO_PROCESS, thread) < nice) setpriority(PRIO_PROCESS, thread, nice);
}

}  // namespace mayfly
