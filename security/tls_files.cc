#include "security/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "protocol/secret_file.h"
#include "security/crypto.h"
#include "security/option_file.h"
#include "security/x509_facts.h"

namespace mayfly {
namespace {

constexpr size_t kMaxFile = 8 << 20;

Result<std::string> ReadFile(std::string_view option, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return BadFile(option, path, "cannot read it: " + WhyUnreadable(path, errno));
  std::stringstream text;
  text << in.rdbuf();
  // Opening a directory works, reading it does not.
  if (text.str().empty()) return BadFile(option, path, "it is empty, or no file");
  if (text.str().size() > kMaxFile) return BadFile(option, path, "it is larger than 8 MB");
  return std::move(text).str();
}

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free_all)>;
Bio Over(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free_all};
}

std::shared_ptr<X509> NextCertificate(const Bio& bio) {
  X509* c = bio ? PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr) : nullptr;
  return c == nullptr ? nullptr : std::shared_ptr<X509>(c, &::X509_free);
}

/// Whether reading ended at the end of the file, and not at something that cannot be parsed.
bool EndedWell() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  return ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
}

struct Password {
  const std::string& text;
  bool asked = false;
};
int GivePassword(char* buffer, int size, int, void* user) {
  auto& p = *static_cast<Password*>(user);
  p.asked = true;
  if (p.text.empty() || p.text.size() > static_cast<size_t>(size)) return -1;
  std::memcpy(buffer, p.text.data(), p.text.size());
  return static_cast<int>(p.text.size());
}

Result<std::shared_ptr<EVP_PKEY>> ReadKey(std::string_view option, const std::string& path,
                                          const std::string& text, const std::string& password) {
  if (text.find("PRIVATE KEY-----") == std::string::npos)
    return BadFile(option, path, "it has no private key: certificate and key belong in one file");
  const Bio bio = Over(text);
  Password p{password};
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio.get(), nullptr, &GivePassword, &p);
  ERR_clear_error();
  if (key != nullptr) return std::shared_ptr<EVP_PKEY>(key, &::EVP_PKEY_free);
  if (!p.asked) return BadFile(option, path, "its private key cannot be read");
  return BadFile(option, path,
                 password.empty() ? "its private key is encrypted, and there is no password for it"
                                  : "the password does not open its private key");
}

std::string Day(int64_t seconds) {
  const auto t = static_cast<time_t>(seconds);
  tm day{};
  ::gmtime_r(&t, &day);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02d-%02d", day.tm_year + 1900, day.tm_mon + 1,
                day.tm_mday);
  return text;
}

}  // namespace

Result<TlsIdentity> ReadTlsIdentity(std::string_view option, const std::string& path,
                                    const std::string& password, int64_t now) {
  MAYFLY_TRY(std::string text, ReadFile(option, path));
  TlsIdentity id;
  {
    const Bio bio = Over(text);
    id.certificate = NextCertificate(bio);
    if (!id.certificate) {
      ERR_clear_error();
      return BadFile(option, path, "it has no certificate in PEM form");
    }
    while (auto next = NextCertificate(bio)) id.chain.push_back(std::move(next));
    if (!EndedWell()) return BadFile(option, path, "one of its certificates cannot be read");
  }
  Result<std::shared_ptr<EVP_PKEY>> key = ReadKey(option, path, text, password);
  OPENSSL_cleanse(text.data(), text.size());
  if (!key) return key.error();
  id.key = std::move(key).value();
  MAYFLY_TRY(CheckSecretFile(path, std::string(option) + ": " + path, SecretReaders::kAnyGroup));
  if (X509_check_private_key(id.certificate.get(), id.key.get()) != 1) {
    ERR_clear_error();
    return BadFile(option, path, "its private key is not that of its (first) certificate");
  }
  time_t at = now;
  if (X509_cmp_time(X509_get0_notBefore(id.certificate.get()), &at) > 0)
    return BadFile(option, path, "its certificate is not valid yet");
  if (X509_cmp_time(X509_get0_notAfter(id.certificate.get()), &at) <= 0)
    return BadFile(option, path,
                   "its certificate has expired on " + Day(ExpiryOf(id.certificate.get())));
  return id;
}

Result<std::vector<std::shared_ptr<X509>>> ReadTlsAuthorities(std::string_view option,
                                                              const std::string& path) {
  MAYFLY_TRY(std::string text, ReadFile(option, path));
  const Bio bio = Over(text);
  std::vector<std::shared_ptr<X509>> all;
  while (auto next = NextCertificate(bio)) all.push_back(std::move(next));
  if (!EndedWell()) return BadFile(option, path, "one of its certificates cannot be read");
  if (all.empty()) return BadFile(option, path, "it has no certificate in PEM form");
  return all;
}

Result<std::vector<std::shared_ptr<X509_CRL>>> ReadTlsRevocations(std::string_view option,
                                                                  const std::string& path) {
  MAYFLY_TRY(std::string text, ReadFile(option, path));
  const Bio bio = Over(text);
  std::vector<std::shared_ptr<X509_CRL>> all;
  while (X509_CRL* list = PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr))
    all.emplace_back(list, &::X509_CRL_free);
  if (!EndedWell()) return BadFile(option, path, "one of its revocation lists cannot be read");
  if (all.empty()) return BadFile(option, path, "it has no revocation list in PEM form");
  return all;
}

}  // namespace mayfly
