#include <signal.h>

#include <cstdio>
#include <thread>

#include "link/link.h"
#include "link/options.h"
#include "link/status_server.h"
#include "protocol/secret_arguments.h"

using namespace mayfly;

namespace {

int Fail(const Error& e) {
  std::fprintf(stderr, "mayfly-link: %s (%d)\n", e.message.c_str(), static_cast<int>(e.code));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Taken by a thread of their own, which may use locks; all other threads inherit the mask.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  auto parsed = ParseLinkOptions(argc, argv);
  HideArguments(argc, argv, {"--source", "--target"});  // passwords may be in them
  if (!parsed) return Fail(parsed.error());
  if (!parsed.value()) return 0;
  const LinkOptions& options = *parsed.value();
  if (options.action != LinkOptions::Action::kRun) {
    auto text = RunLinkAction(options);
    if (!text) return Fail(text.error());
    std::printf("%s\n", text.value().c_str());
    return 0;
  }
  for (const std::string& warning : WarningsOf(options))
    std::fprintf(stderr, "mayfly-link: warning: %s\n", warning.c_str());
  LinkStatus status;
  Link link(options, status);
  std::thread([&] {
    int signal = 0;
    sigwait(&ends, &signal);
    link.Stop();
  }).detach();
  std::unique_ptr<StatusServer> server;
  if (options.http_port != 0) {
    auto started = StatusServer::Start(options.http_bind_ip, options.http_port, status);
    if (!started) return Fail(started.error());
    server = std::move(started).value();
  }
  if (auto ran = link.Run(); !ran) return Fail(ran.error());
  return 0;
}
