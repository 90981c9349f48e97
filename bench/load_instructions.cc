// Instructions an operation, by callgrind.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

void Control(const char* what, int pid) {
  const std::string command =
      "callgrind_control " + std::string(what) + " " + std::to_string(pid) + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) {
    std::fprintf(stderr, "failed: %s\n", command.c_str());
    std::exit(1);
  }
}

/// The sum of all threads in the newest of the files that callgrind has written: out_file.1, .2 …
double NewestTotal(const std::string& out_file) {
  int newest = 0;
  while (std::filesystem::exists(out_file + "." + std::to_string(newest + 1))) ++newest;
  std::ifstream in(out_file + "." + std::to_string(newest));
  double total = 0;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("totals: ")) total += std::strtod(line.c_str() + 8, nullptr);
  return total;
}

}  // namespace

double CountInstructions(LoadOptions options, const std::string& out_file,
                         const std::function<void(int64_t, std::string&)>& next) {
  const int64_t counted = options.max_operations;
  options.max_operations = counted / 4 + 1;
  RunLoad(options, next);
  options.max_operations = counted;
  Control("--instr=on", options.pid);
  Control("--zero", options.pid);
  LoadResult r = RunLoad(options, next);
  Control("--dump", options.pid);
  Control("--instr=off", options.pid);
  if (r.errors > 0)
    std::fprintf(stderr, "ERRORS: %ld of %ld replies were errors\n", r.errors, r.operations);
  return NewestTotal(out_file) / static_cast<double>(r.operations);
}

}  // namespace mayfly::bench
