// mayflyd on a disk that can fail, for the process-level fault tests (disk_run.py,
// member_faults_run.py). It takes mayflyd's flags, and on standard input
//
//   power        the power goes: whatever was not synced is gone, and the process with it
//   free BYTES   the disk has room for so many more bytes
//   free none    … for as many as there are
//   fail writes  every append answers with an I/O error; fail syncs: every sync; fail none
//   slow MILLIS  every sync takes so much longer
//   clock MILLIS the wall clock is so much ahead of the machine's (negative: behind)
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "server/run.h"
#include "storage/kv/rocks_fault_env.h"

static std::atomic<long long> drift_millis{0};

/// In the place of the C library's: the whole process, std::chrono included, reads a clock that is
/// wrong.
extern "C" int clock_gettime(clockid_t id, timespec* t) {
  const int failed = static_cast<int>(::syscall(SYS_clock_gettime, id, t));
  if (failed != 0 || id != CLOCK_REALTIME) return failed;
  const long long nanos = t->tv_sec * 1'000'000'000LL + t->tv_nsec + drift_millis * 1'000'000LL;
  t->tv_sec = nanos / 1'000'000'000;
  t->tv_nsec = nanos % 1'000'000'000;
  return 0;
}

int main(int argc, char** argv) {
  // For ever: the thread below may still use it when the server has stopped.
  static mayfly::FaultDisk* disk = mayfly::FaultDisk::Make().release();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([] {
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "power") {
        disk->CutPower();
        const bool dropped = disk->DropUnsynced().has_value();
        ::_exit(dropped ? 9 : 10);
      }
      if (line == "free none")
        disk->SetFreeBytes(std::nullopt);
      else if (line.starts_with("free "))
        disk->SetFreeBytes(std::atoll(line.c_str() + 5));
      else if (line.starts_with("fail ")) {
        disk->FailWrites(line == "fail writes");
        disk->FailSyncs(line == "fail syncs");
      } else if (line.starts_with("slow "))
        disk->SlowSyncs(std::atoll(line.c_str() + 5));
      else if (line.starts_with("clock "))
        drift_millis = std::atoll(line.c_str() + 6);
      std::cout << "done: " << line << std::endl;
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return mayfly::RunServer({argv, argv + argc}, disk->env());
}
