#pragma once
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mayfly::testing {

/// An authority and what it issues, made with OpenSSL itself.
struct Issuer {
  std::shared_ptr<EVP_PKEY> key{EVP_EC_gen("P-256"), &::EVP_PKEY_free};
  std::shared_ptr<X509> own;
  /// What subjects have before their CN.
  std::vector<std::pair<std::string, std::string>> unit{{"O", "Example, Inc."}};
  /// The value of the extension by which members may know one another; empty: without it.
  std::string membership;

  explicit Issuer(const char* name = "authority") {
    own = Make(name, key.get(), nullptr, -10, 1000, {{NID_basic_constraints, "critical,CA:TRUE"}});
  }
  using Extensions = std::vector<std::pair<int, std::string>>;
  std::shared_ptr<X509> Make(const char* name, EVP_PKEY* of, X509* issuer, int from_days,
                             int until_days, const Extensions& extensions) const {
    std::shared_ptr<X509> c(X509_new(), &::X509_free);
    X509_set_version(c.get(), 2);
    static int64_t serial = 1;
    ASN1_INTEGER_set_int64(X509_get_serialNumber(c.get()), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(c.get()), from_days * 86400L);
    X509_gmtime_adj(X509_getm_notAfter(c.get()), until_days * 86400L);
    X509_NAME* subject = X509_get_subject_name(c.get());
    auto attributes = unit;
    attributes.emplace_back("CN", name);
    for (const auto& [field, value] : attributes)
      X509_NAME_add_entry_by_txt(subject, field.c_str(), MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0);
    X509_set_issuer_name(c.get(), issuer ? X509_get_subject_name(issuer) : subject);
    X509_set_pubkey(c.get(), of);
    for (const auto& [nid, value] : extensions) {
      X509_EXTENSION* e = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
      REQUIRE(e != nullptr);
      X509_add_ext(c.get(), e, -1);
      X509_EXTENSION_free(e);
    }
    REQUIRE(X509_sign(c.get(), key.get(), EVP_sha256()) > 0);
    return c;
  }
  /// The PEM file of a new certificate with its key.
  std::string Issue(const std::string& path, const char* name, int from = -5, int until = 400,
                    const char* password = nullptr) const {
    std::shared_ptr<EVP_PKEY> k(EVP_EC_gen("P-256"), &::EVP_PKEY_free);
    Extensions extensions{{NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1"}};
    static const int kMembership =
        OBJ_create("1.3.6.1.4.1.34601.2.1.2", "membership", "membership");
    if (!membership.empty()) extensions.emplace_back(kMembership, "ASN1:UTF8String:" + membership);
    auto c = Make(name, k.get(), own.get(), from, until, extensions);
    FILE* f = ::fopen(path.c_str(), "w");
    PEM_write_X509(f, c.get());
    PEM_write_PrivateKey(f, k.get(), password ? EVP_aes_256_cbc() : nullptr, nullptr, 0, nullptr,
                         const_cast<char*>(password));
    ::fclose(f);
    ::chmod(path.c_str(), 0600);
    return path;
  }
  std::string Write(const std::string& path) const {
    FILE* f = ::fopen(path.c_str(), "w");
    PEM_write_X509(f, own.get());
    ::fclose(f);
    return path;
  }
};

}  // namespace mayfly::testing
