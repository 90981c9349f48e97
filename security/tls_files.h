#pragma once
#include <openssl/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// A certificate with its key and the certificates between it and its authority.
struct TlsIdentity {
  std::shared_ptr<X509> certificate;
  std::vector<std::shared_ptr<X509>> chain;  ///< without the certificate itself
  std::shared_ptr<EVP_PKEY> key;
};

/// Reads a PEM file with a certificate, perhaps its chain, and its key. `option` is what the file
/// was given by, for messages, which name the file and what is wrong with it. A key that others of
/// this machine can read is refused (its group may where root owns the file, as packages install
/// keys); so is a certificate that is not valid at `now` (seconds since 1970). Errors:
/// InvalidOptions 72.
Result<TlsIdentity> ReadTlsIdentity(std::string_view option, const std::string& path,
                                    const std::string& password, int64_t now);
/// A PEM file of certificates. Errors: as above; without any in it too.
Result<std::vector<std::shared_ptr<X509>>> ReadTlsAuthorities(std::string_view option,
                                                              const std::string& path);
/// A PEM file of revocation lists. Errors: as above.
Result<std::vector<std::shared_ptr<X509_CRL>>> ReadTlsRevocations(std::string_view option,
                                                                  const std::string& path);

}  // namespace mayfly
