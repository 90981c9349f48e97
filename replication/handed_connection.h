#pragma once
#include <memory>
#include <string>

#include "security/tls_session.h"

namespace mayfly {

/// A connection on its way from one thread to another: an open descriptor, the TLS over it if there
/// is any, and bytes that were read from it and not used. Whoever has it closes the descriptor.
struct HandedConnection {
  int socket = -1;
  std::string early;
  std::unique_ptr<TlsSession> tls;  ///< null: plain
};

}  // namespace mayfly
