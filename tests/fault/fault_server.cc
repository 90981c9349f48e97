// mayflyd on a disk that can fail, for the process-level fault tests (disk_run.py, member_faults_run.py). It takes
// mayflyd's flags, and on standard input
//
//   power        the power goes: whatever was not synced is gone, and the process with it
//   free BYTES   the disk has room for so many more bytes
//   free none    … for as many as there are
//   slow MILLIS  every sync takes so much longer
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "server/run.h"
#include "storage/rocks_fault_env.h"

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
      else if (line.starts_with("slow "))
        disk->SlowSyncs(std::atoll(line.c_str() + 5));
      std::cout << "done: " << line << std::endl;
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return mayfly::RunServer({argv, argv + argc}, disk->env());
}
