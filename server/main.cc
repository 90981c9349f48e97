#include <string>
#include <vector>

#include "protocol/secret_arguments.h"
#include "server/run.h"

/// jemalloc's settings; those in the environment (MALLOC_CONF) count more. Freed memory returns
/// to the system after a second instead of ten, also that of idle threads: otherwise memory freed
/// by memtables and large batches is a third of the process. Measured: no CPU more than the
/// noise.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "background_thread:true,dirty_decay_ms:1000";
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  mayfly::HideArguments(argc, argv, mayfly::SecretOptions());
  return mayfly::RunServer(arguments);
}
