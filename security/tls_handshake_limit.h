#pragma once
#include <openssl/types.h>

#include <cstddef>
#include <cstdint>

namespace mayfly {

/// Ends a TLS connection whose other side sends one handshake message after another once the
/// handshake is over: KeyUpdate in TLS 1.3, attempts to renegotiate in TLS 1.2. OpenSSL takes any
/// number of them within one read, 20 µs each, so that nobody else on the thread has a turn. Peers
/// send one in millions of records, or never. Threads: those of the connection.
class HandshakeLimit {
 public:
  /// From now on. REQUIRES: the handshake is over; this outlives all reads of `ssl`.
  void Watch(SSL* ssl);
  /// There were too many; reads of the connection report its end.
  bool exceeded() const { return exceeded_; }

  static constexpr uint64_t kFree = 32;           ///< that cost nothing
  static constexpr uint64_t kRecordsEach = 1024;  ///< one more for this many records

 private:
  static void Saw(int sent, int version, int type, const void* bytes, size_t n, SSL* ssl,
                  void* limit);
  uint64_t records_ = 0, messages_ = 0;
  bool exceeded_ = false;
};

}  // namespace mayfly
