#pragma once
#include <memory>
#include <string>

#include "link/link.h"

namespace mayfly {

/// `/status` (JSON), `/metrics` (Prometheus' text) and `/healthz` of a link, on a thread of its
/// own. Reads only. Threads: made and destroyed by main.
class StatusServer {
 public:
  /// Errors: HostUnreachable 6 when the address cannot be bound.
  static Result<std::unique_ptr<StatusServer>> Start(const std::string& address, int port,
                                                     const LinkStatus& status);
  ~StatusServer();

 private:
  struct Impl;
  explicit StatusServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mayfly
