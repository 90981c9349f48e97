#include "protocol/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/unit/scratch_dir.h"

namespace mayfly {
namespace {

using Catch::Contains;
using testing::ScratchDir;

// Issue 29: the files with the first password and with the token of a scraper were read whoever
// else could read them.
TEST_CASE("A file with a secret is read if its owner alone can reach it", "[secret_file]") {
  ScratchDir dir;
  const std::string path = dir.path() + "/secret";
  std::ofstream(path) << "geheim\n";
  const auto read = [&](mode_t mode) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return ReadSecretFile(path, "option: " + path, 100);
  };
  for (const mode_t mode : {0600, 0400, 0700}) CHECK(read(mode).value() == "geheim\n");
  for (const mode_t mode : {0644, 0640, 0604, 0440, 0444, 0620, 0602, 0610, 0601, 0777}) {
    const auto r = read(mode);
    REQUIRE_FALSE(r);
    CHECK(r.error().code == ErrorCode::kInvalidOptions);
    CHECK_THAT(r.error().message, Contains("option: " + path) && Contains("too open") &&
                                      Contains("chmod 600") && !Contains("geheim"));
    CHECK_FALSE(CheckSecretFile(path, "option"));
  }
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK_THAT(ReadSecretFile(path, "option", 6).error().message, Contains("larger than 6 bytes"));
  CHECK(ReadSecretFile(path, "option", 7));
  CHECK_THAT(ReadSecretFile(path + "2", "option", 7).error().message, Contains("No such file"));
  CHECK_THAT(ReadSecretFile(dir.path(), "option", 7).error().message, Contains("cannot read it"));
  CHECK(CheckSecretFile(path + "2", "option"));
  CHECK(ReadSecretFile("/dev/null", "option", 7).value().empty());
}

TEST_CASE("The group of root may read where an option allows it, and nobody else's",
          "[secret_file]") {
  struct stat file {};
  const auto allowed = [&](uid_t owner, mode_t mode, SecretReaders readers) {
    file.st_uid = owner;
    file.st_mode = S_IFREG | mode;
    return CheckSecretFile(file, "key", readers).has_value();
  };
  CHECK(allowed(0, 0640, SecretReaders::kGroupOfRoot));
  CHECK(allowed(0, 0440, SecretReaders::kGroupOfRoot));
  for (const mode_t mode : {0644, 0444, 0660, 0650, 0604})
    CHECK_FALSE(allowed(0, mode, SecretReaders::kGroupOfRoot));
  CHECK_FALSE(allowed(0, 0440, SecretReaders::kNone));
  CHECK_FALSE(allowed(12345, 0640, SecretReaders::kGroupOfRoot));
  CHECK(allowed(12345, 0600, SecretReaders::kNone));
  // The mode alone helps nobody who is not the owner.
  file.st_uid = ::geteuid() + 1;
  file.st_mode = S_IFREG | 0444;
  const std::string user = std::to_string(::geteuid());
  CHECK_THAT(CheckSecretFile(file, "key").error().message,
             Contains("chown it to user " + user) && Contains("mode 0400, uid " + user));
  file.st_mode = S_IFIFO | 0644;
  CHECK(CheckSecretFile(file, "key"));
}

}  // namespace
}  // namespace mayfly
