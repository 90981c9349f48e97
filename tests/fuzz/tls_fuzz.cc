// TLS: whatever a client sends, in a handshake or behind one, ends in a refusal or in a wait; and
// no bytes of a certificate's extension are read as other roles than those that it has.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "fuzz_util.h"
#include "security/key_file.h"
#include "security/time_keys.h"
#include "security/tls.h"
#include "security/x509_facts.h"

using namespace mayfly;

namespace {

/// A server with a certificate of its own.
const Tls& Server() {
  static const std::unique_ptr<Tls> tls = [] {
    std::string path = std::filesystem::temp_directory_path() / "mayfly-tls-fuzz-XXXXXX";
    const int fd = ::mkstemp(path.data());
    FILE* f = ::fdopen(fd, "w");
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* c = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(c), -86400);
    X509_gmtime_adj(X509_getm_notAfter(c), 864000);
    X509_set_pubkey(c, key);
    X509_sign(c, key, EVP_sha256());
    PEM_write_X509(f, c);
    PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr);
    ::fclose(f);
    X509_free(c);
    EVP_PKEY_free(key);
    TlsOptions o;
    o.mode = TlsMode::kRequire;
    o.certificate_key_file = o.ca_file = path;
    auto made = Tls::Make(o, [] { return ::time(nullptr); });
    Require(made.has_value(), "a server");
    ::unlink(path.c_str());
    return std::move(made).value();
  }();
  return *tls;
}

void Records(std::string_view input) {
  int s[2];
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s) == 0, "sockets");
  {
    // A part as it was read before, the rest by the socket.
    const size_t early = input.empty() ? 0 : static_cast<uint8_t>(input[0]) % (input.size() + 1);
    auto session = Server().Accept(s[1], std::string(input.substr(0, early)));
    [[maybe_unused]] ssize_t n = ::write(s[0], input.data() + early, input.size() - early);
    ::shutdown(s[0], SHUT_WR);
    TlsSession::Step step;
    for (int i = 0; i < 20; ++i) {
      step = session->Handshake();
      if (step.outcome != TlsSession::Outcome::kWantRead &&
          step.outcome != TlsSession::Outcome::kWantWrite)
        break;
    }
    Require(step.outcome != TlsSession::Outcome::kDone, "nobody gets in without a certificate");
    session->SayGoodbye();
  }
  ::close(s[0]);
  ::close(s[1]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (auto roles = ParseRolesExtension(input); roles.has_value())
    for (const RoleName& r : roles.value())
      Require(!r.role.empty() && !r.db.empty() && r.db.find('\0') == std::string::npos,
              "a role has a name and a database");
  if (auto name = ParseOrganisation(input); name.has_value())
    Require(!name.value().empty() && !Server().IsMemberName(input),
            "a server whose certificate has no such name knows no members");
  if (auto keys = ParseKeyFile(input, "a file"); keys.has_value())
    for (const std::string& key : keys.value())
      Require(key.size() >= 6 && key.size() <= 1024, "a key is of the size of one");
  TimeKeys times;
  if (times.Use(input)) {
    TimeSignature s;
    Require(times.Sign(1, &s) && times.Check(1, s.view(), s.key_id).has_value(),
            "what is signed is believed");
  }
  Records(input);
  return 0;
}
