#pragma once
#include <atomic>
#include <cstdint>

#include "security/tls_options.h"

namespace mayfly {

/// What parameters say of TLS. Threads: any; `options` is complete before the first client.
struct TlsSettings {
  explicit TlsSettings(TlsOptions o) : options(std::move(o)) {}
  TlsOptions options;  ///< of the command line, and the parameters that are for start-up alone
  std::atomic<int64_t> handshake_timeout_millis{10'000};
  std::atomic<int64_t> max_handshakes{1024};  ///< at the same time
};

}  // namespace mayfly
