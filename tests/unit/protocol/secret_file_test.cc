#include "protocol/secret_file.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

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
  // A file of root has a rule of its own, which is below.
  if (::geteuid() == 0) REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
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
                                      Contains("chmod 600 " + path) && !Contains("geheim"));
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

TEST_CASE("A group may read a file of root: the server's own, or any where an option allows it",
          "[secret_file]") {
  constexpr auto kOwn = SecretReaders::kOwnGroup, kAny = SecretReaders::kAnyGroup;
  struct stat file {};
  const auto allowed = [&](uid_t owner, gid_t group, mode_t mode, SecretReaders readers) {
    file.st_uid = owner;
    file.st_gid = group;
    file.st_mode = S_IFREG | mode;
    return CheckSecretFile(file, "/k", "key", readers).has_value();
  };
  const gid_t own = ::getegid();
  std::vector<gid_t> groups(1000);
  groups.resize(static_cast<size_t>(std::max(0, ::getgroups(1000, groups.data()))));
  gid_t other = 54321;
  while (other == own || std::ranges::find(groups, other) != groups.end()) ++other;
  // As Kubernetes mounts secrets with fsGroup.
  for (const mode_t mode : {0640, 0440, 0600, 0400}) {
    CHECK(allowed(0, own, mode, kOwn));
    CHECK(allowed(0, 0, mode, kOwn));
    CHECK(allowed(0, other, mode, kAny));
  }
  for (const gid_t group : groups) CHECK(allowed(0, group, 0440, kOwn));
  CHECK_FALSE(allowed(0, other, 0440, kOwn));
  CHECK_FALSE(allowed(0, other, 0640, kOwn));
  for (const gid_t group : {gid_t{0}, own, other})
    for (const mode_t mode : {0644, 0444, 0660, 0604, 0620, 0602, 0601, 0777})
      for (const SecretReaders readers : {kOwn, kAny})
        CHECK_FALSE(allowed(0, group, mode, readers));
  // The first group of a user may be that of all users.
  for (const gid_t group : {gid_t{0}, own, other}) {
    CHECK_FALSE(allowed(12345, group, 0640, kAny));
    CHECK_FALSE(allowed(12345, group, 0440, kOwn));
  }
  CHECK(allowed(12345, other, 0600, kOwn));
  // The mode alone helps nobody who is not the owner.
  file.st_uid = ::geteuid() + 1;
  file.st_mode = S_IFREG | 0444;
  const std::string gid = std::to_string(own);
  const std::string user = std::to_string(::geteuid());
  CHECK_THAT(CheckSecretFile(file, "/k", "key").error().message,
             Contains("chown " + user + " /k and chmod 600 /k") &&
                 Contains("mode 0400 and uid " + user) && Contains("mode 0440 and gid " + gid));
  file.st_mode = S_IFIFO | 0644;
  CHECK(CheckSecretFile(file, "/k", "key"));
}

/// As long as it lives this process is somebody else (of no group but their own), if it is root's.
class SomebodyElse {
 public:
  static constexpr uid_t kUser = 65534;
  SomebodyElse() {
    if (!root_) return;
    groups_.resize(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
    REQUIRE(::getgroups(static_cast<int>(groups_.size()), groups_.data()) >= 0);
    REQUIRE(::setgroups(0, nullptr) == 0);
    REQUIRE((::setegid(kUser) == 0 && ::seteuid(kUser) == 0));
  }
  ~SomebodyElse() {
    if (!root_) return;
    if (::seteuid(0) != 0 || ::setegid(0) != 0 || ::setgroups(groups_.size(), groups_.data()) != 0)
      std::abort();
  }
  SomebodyElse(const SomebodyElse&) = delete;

 private:
  bool root_ = ::geteuid() == 0;
  std::vector<gid_t> groups_;
};

// A newcomer saw "Permission denied" of a file that belonged to root, and nothing else.
TEST_CASE("What cannot be read for lack of a permission says whose it is, and what to do",
          "[secret_file]") {
  ScratchDir dir;
  const std::string path = dir.path() + "/secret";
  std::ofstream(path) << "geheim\n";
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  CHECK(WhyUnreadable(path, EIO) == std::strerror(EIO));
  const bool root = ::geteuid() == 0;
  if (!root) {  // one's own, of mode 0000
    CHECK_THAT(
        ReadSecretFile(path, "option: " + path, 100).error().message,
        Contains("Permission denied") && Contains("(mode 0000)") && Contains("chmod 600 " + path));
    return;
  }
  const std::string user = std::to_string(SomebodyElse::kUser);
  const auto why = [&](uid_t owner, gid_t group, mode_t mode) {
    REQUIRE(::chown(path.c_str(), owner, group) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const SomebodyElse other;
    return ReadSecretFile(path, "option: " + path, 100).error().message;
  };
  // Nobody else may enter the directory.
  CHECK_THAT(why(0, 0, 0644),
             Contains("option: " + path + ": cannot read it: Permission denied: the directory " +
                      dir.path() + " belongs to user 0 and group 0 (mode 0700)") &&
                 Contains("runs as user " + user + " in group " + user));
  REQUIRE(::chmod(dir.path().c_str(), 0711) == 0);
  CHECK_THAT(why(0, 0, 0600),
             Contains("Permission denied: it belongs to user 0 and group 0 (mode 0600)") &&
                 Contains("chown " + user + " " + path) && Contains("chmod 600 " + path) &&
                 !Contains("SupplementaryGroups"));
  CHECK_THAT(why(0, 12345, 0640), Contains("group 12345 (mode 0640)") &&
                                      Contains("in group 12345 as well") &&
                                      Contains("SupplementaryGroups"));
  CHECK_THAT(why(12345, 0, 0600), Contains("run this as user 12345"));
  CHECK_THAT(why(SomebodyElse::kUser, 0, 0), Contains(": chmod 600 " + path));
}

}  // namespace
}  // namespace mayfly
