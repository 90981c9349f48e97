#include "security/tls_handshake_limit.h"

#include <openssl/ssl.h>

namespace mayfly {

void HandshakeLimit::Watch(SSL* ssl) {
  SSL_set_msg_callback(ssl, &Saw);
  SSL_set_msg_callback_arg(ssl, this);
}

void HandshakeLimit::Saw(int sent, int, int type, const void* bytes, size_t n, SSL* ssl,
                         void* limit) {
  if (sent != 0 || n == 0) return;
  auto& self = *static_cast<HandshakeLimit*>(limit);
  // A record starts with its type; in TLS 1.3 all look like data, and the decrypted content has the
  // real type.
  self.records_ += type == SSL3_RT_HEADER;
  if ((type != SSL3_RT_HEADER && type != SSL3_RT_INNER_CONTENT_TYPE) ||
      *static_cast<const unsigned char*>(bytes) != SSL3_RT_HANDSHAKE)
    return;
  if (++self.messages_ <= kFree + self.records_ / kRecordsEach) return;
  self.exceeded_ = true;
  // OpenSSL looks at this before each record, and reads no more.
  SSL_set_shutdown(ssl, SSL_get_shutdown(ssl) | SSL_RECEIVED_SHUTDOWN);
}

}  // namespace mayfly
