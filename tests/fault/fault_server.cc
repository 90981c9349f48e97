// mayflyd on a disk that can fail, for the process-level fault tests (disk_run.py,
// member_faults_run.py, isolation_run.py). It takes mayflyd's flags, and on standard input
//
//   power        the power goes: whatever was not synced is gone, and the process with it
//   free BYTES   the disk has room for so many more bytes
//   free none    … for as many as there are
//   fail writes  every append answers with an I/O error; fail syncs: every sync; fail none
//   slow MILLIS  every sync takes so much longer
//   clock MILLIS the wall clock is so much ahead of the machine's (negative: behind)
//   break WHAT   transactions are no longer isolated: conflicts are not found, own writes are not
//                read, or each statement reads now (snapshots); break none
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
#include "storage/read/read_view.h"

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

// What isolates transactions, each with a fault on purpose: a checker of isolation must find it. In
// this program alone the linker puts them in the place of the server's own (tests/CMakeLists.txt).
enum class Broken : int { kNone, kConflicts, kOwnWrites, kSnapshots };
static std::atomic<Broken> broken{Broken::kNone};

using mayfly::ReadView;
using mayfly::Result;
using mayfly::WriteUnit;

// WriteUnit::Impl::CheckUnchanged, as the linker knows it.
#define CHECK_UNCHANGED                                                                      \
  "_ZNK6mayfly9WriteUnit4Impl14CheckUnchangedENS_8KeyspaceESt17basic_string_viewIcSt11char_" \
  "traitsIcEE"
Result<void> TheirCheckUnchanged(const void* unit, mayfly::Keyspace ks,
                                 std::string_view key) asm("__real_" CHECK_UNCHANGED);
Result<void> OurCheckUnchanged(const void* unit, mayfly::Keyspace ks,
                               std::string_view key) asm("__wrap_" CHECK_UNCHANGED);
Result<void> OurCheckUnchanged(const void* unit, mayfly::Keyspace ks, std::string_view key) {
  return broken == Broken::kConflicts ? mayfly::Ok() : TheirCheckUnchanged(unit, ks, key);
}

// ReadView::With.
#define WITH "_ZNK6mayfly8ReadView4WithERNS_9WriteUnitE"
ReadView TheirWith(const ReadView* view, WriteUnit& unit) asm("__real_" WITH);
ReadView OurWith(const ReadView* view, WriteUnit& unit) asm("__wrap_" WITH);
ReadView OurWith(const ReadView* view, WriteUnit& unit) {
  const bool of_transaction = view->point() != nullptr;
  if (of_transaction && broken == Broken::kOwnWrites) return *view;
  const ReadView now;
  return TheirWith(of_transaction && broken == Broken::kSnapshots ? &now : view, unit);
}

static void Break(std::string_view what) {
  broken = what == "conflicts"    ? Broken::kConflicts
           : what == "own writes" ? Broken::kOwnWrites
           : what == "snapshots"  ? Broken::kSnapshots
                                  : Broken::kNone;
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
      else if (line.starts_with("break "))
        Break(std::string_view(line).substr(6));
      std::cout << "done: " << line << std::endl;
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return mayfly::RunServer({argv, argv + argc}, disk->env());
}
