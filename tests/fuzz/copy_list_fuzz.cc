// The list of a copy's files on disk, as start-up reads it after a crash: whatever it says, a
// directory that waits to be put in place is taken whole or not at all, and the member's own data
// is still there in the second case.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz_util.h"
#include "replication/consensus.h"
#include "storage/kv/rocks_kv.h"

namespace {

namespace fs = std::filesystem;

void Write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

struct Scratch {
  Scratch() {
    std::string pattern = fs::temp_directory_path() / "mayfly-fuzz-XXXXXX";
    Require(::mkdtemp(pattern.data()) != nullptr, "a directory");
    path = pattern;
  }
  ~Scratch() { fs::remove_all(path); }
  fs::path path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Scratch scratch;
  if (size == 0) return 0;
  const std::string_view list(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool moving = data[0] & 1;
  const fs::path& dir = scratch.path;
  for (auto& f : fs::directory_iterator(dir)) fs::remove_all(f.path());
  const fs::path root = dir / ".resync", own = moving ? root / "old" : dir;
  fs::create_directories(root / "incoming");
  if (moving) fs::create_directories(own);
  Write(own / "CURRENT", "MANIFEST-000001\n");
  Write(own / "000007.sst", "own");
  Write(root / "incoming/CURRENT", "MANIFEST-000002\n");
  Write(root / "incoming/MANIFEST-000002", "theirs");
  Write(root / "incoming/000009.sst", "their data");
  Write(root / (moving ? "moving" : "ready"), list);
  const auto applied = mayfly::ApplyPendingResync(*mayfly::MakeRocksEngine(), dir.string());
  if (applied && applied.value()) {
    Require(fs::exists(dir / "CURRENT") && fs::exists(dir / "000009.sst") &&
                fs::exists(dir / "MANIFEST-000002"),
            "a copy that is taken is there");
    return 0;
  }
  Require(fs::exists(dir / "000007.sst") || fs::exists(root / "old/000007.sst"),
          "without the copy the member's own data stays");
  return 0;
}
