// Configuration: whatever stands in a file or on the command line gives a configuration or an error
// that says what is wrong; never an exception. What it gives keeps the promises of its ranges.
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz_util.h"
#include "server/base/config_file.h"
#include "server/dispatch/config.h"

namespace {

using namespace mayfly;

/// One file for all inputs of a process.
const std::string& Path() {
  static const std::string path = "/dev/shm/mayfly-config-fuzz-" + std::to_string(::getpid());
  return path;
}

void Check(const Result<ConfigOutcome>& parsed) {
  if (!parsed) return Require(!parsed.error().message.empty(), "a refusal says why");
  if (parsed.value().action == ConfigOutcome::Action::kPrint)
    return Require(!parsed.value().text.empty(), "there is something to print");
  const ServerConfig& c = parsed.value().config;
  Require(c.port >= 0 && c.port <= 65535 && c.http_port >= 0 && c.http_port <= 65535,
          "ports are ports");
  Require(c.max_connections > 0, "there may be a connection");
  Require(c.sync_interval_ms >= 1 && c.sync_interval_ms <= 500, "the log is synced in time");
  Require(c.slow_sample_rate >= 0 && c.slow_sample_rate <= 1, "a fraction is one");
  Require(c.EffectiveIoThreads() > 0 && c.EffectiveWorkerThreads() > 0, "somebody works");
  Require(ValidateBson(c.parsed.view().bytes(), false).has_value(),
          "getCmdLineOpts answers a document");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 64 * 1024) return 0;
  const std::string input(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {  // a file
    std::ofstream(Path(), std::ios::trunc | std::ios::binary) << input;
    auto pairs = ReadConfigFile(Path());
    if (!pairs.has_value()) Require(!pairs.error().message.empty(), "a refusal says why");
    Check(ParseConfig({"mayflyd", "--config", Path()}));
    ::unlink(Path().c_str());
    return 0;
  }
  std::vector<std::string> args{"mayflyd"};  // flags, one a line
  for (size_t at = 0; at <= input.size() && args.size() < 200;) {
    const size_t end = std::min(input.find('\n', at), input.size());
    args.push_back(input.substr(at, end - at).c_str());  // as argv: up to a null byte
    // What it names is read: files of this machine are not the fuzzer's.
    if (args.back().find("onfig") != std::string::npos || args.back().starts_with("-f")) return 0;
    at = end + 1;
  }
  Check(ParseConfig(args));
  return 0;
}
