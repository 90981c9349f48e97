#include "server/base/network_buffers.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace mayfly {

int64_t MemoryPressure::Resident() {
  static const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[128] = {};
  long long size = 0, resident = 0, shared = 0;  // pages
  if (fd < 0 || ::pread(fd, text, sizeof text - 1, 0) <= 0 ||
      std::sscanf(text, "%lld %lld %lld", &size, &resident, &shared) != 3)
    return 0;
  return (resident - shared) * ::sysconf(_SC_PAGESIZE);
}

void WaitLine::Tell() {
  first_ = waiting_.empty() ? 0 : waiting_.begin()->first;
  since_ = waiting_.empty() ? 0 : waiting_.begin()->second;
}

void WaitLine::Place::Enter(int64_t now) {
  if (number_ != 0) return;
  std::lock_guard l(line_.mutex_);
  line_.waiting_.emplace(line_.last_ + 1, now);
  number_ = ++line_.last_;
  line_.Tell();
}

WaitLine::Place::~Place() {
  if (number_ == 0) return;
  std::lock_guard l(line_.mutex_);
  line_.waiting_.erase(number_);
  line_.Tell();
}

}  // namespace mayfly
