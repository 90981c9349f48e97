#pragma once
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "protocol/base64.h"
#include "scratch_dir.h"
#include "security/at_rest.h"

namespace mayfly::testing {

/// A key file with these bytes in it, in base64; its path.
inline std::string WriteKeyFile(const std::string& path, std::string_view key, mode_t mode = 0600) {
  std::string text;
  AppendBase64(key, text);
  std::ofstream(path) << text << "\n";
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

inline MasterKey MakeMasterKey(const std::string& path, char byte) {
  auto key = MasterKey::Read("encryptionKeyFile", WriteKeyFile(path, std::string(32, byte)));
  REQUIRE(key);
  return std::move(key).value();
}

/// The ciphers of a store of its own.
inline FileCiphersPtr MakeCiphers() {
  ScratchDir dir;
  const MasterKey master = MakeMasterKey(dir.path() + "/key", 'k');
  REQUIRE(MakeKeystore(dir.path(), master));
  auto opened = OpenKeystore(dir.path(), master, nullptr);
  REQUIRE(opened);
  return opened.value().ciphers;
}

}  // namespace mayfly::testing
