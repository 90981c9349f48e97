#pragma once
#include <sys/stat.h>

#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

/// Which group may read a file with a secret if root owns it. Of a file of anybody else none may
/// (MongoDB's rule for key files): its owner's first group may be that of all users.
enum class SecretReaders : uint8_t {
  kOwnGroup,  ///< root's, or one of this process: secrets that Kubernetes mounts
  kAnyGroup,  ///< whatever group root has given it to (PostgreSQL's rule for private keys)
};

/// Whether nobody else has any access to an open file with a secret: a password, a token, a key.
/// `what`: begins the message, as in "keyFile: /etc/mayfly.key". Devices and pipes are not looked
/// at: nothing stays in them. Errors: InvalidOptions 72 with whose it is, its mode, and the
/// commands that change them.
Result<void> CheckSecretFile(const struct stat& file, const std::string& path,
                             std::string_view what,
                             SecretReaders readers = SecretReaders::kOwnGroup);
/// The same of a file that another library reads; one that is not there has no secret.
Result<void> CheckSecretFile(const std::string& path, std::string_view what,
                             SecretReaders readers = SecretReaders::kOwnGroup);

/// The content of such a file of at most `max` bytes, whose descriptor was looked at: nobody can
/// put another one in its place in between. The caller wipes it (OPENSSL_cleanse) when it is done.
/// Errors: those of CheckSecretFile; InvalidOptions 72 for a larger one, and with WhyUnreadable
/// when it cannot be read.
Result<std::string> ReadSecretFile(const std::string& path, std::string_view what, size_t max,
                                   SecretReaders readers = SecretReaders::kOwnGroup);

/// Why this process could not read a file, by errno: the words of the system. Where a permission is
/// missing, also whose the file is, as whom this runs, and what gives access: the file may lie in a
/// directory that this process cannot enter. For every file that an option names.
std::string WhyUnreadable(const std::string& path, int code);

}  // namespace mayfly
