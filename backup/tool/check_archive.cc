#include <cstdio>

#include "backup/tool/actions.h"
#include "protocol/hex.h"
#include "replication/log_archive.h"
#include "security/at_rest.h"

namespace mayfly {

Result<int> CheckArchiveSegments(const std::string& archive, const std::string& key_file) {
  ArchiveSource source{archive, {}};
  std::optional<MasterKey> key;
  if (!key_file.empty()) {
    MAYFLY_TRY(key, MasterKey::Read("encryptionKeyFile", key_file));
  }
  std::vector<const MasterKey*> keys;
  if (key) keys.push_back(&*key);
  MAYFLY_TRY(source.ciphers, OpenArchiveKeys(archive, keys));
  uint64_t read = 0, told = 0;
  MAYFLY_TRY(const ArchiveSummary found, VerifyArchive(source, [&](uint64_t bytes) -> Result<void> {
               read += bytes;
               if (read >> 20 != told)
                 std::fprintf(stderr, "\r%s: %llu MB", archive.c_str(),
                              static_cast<unsigned long long>(told = read >> 20));
               return Ok();
             }));
  std::fprintf(stderr, "\n");
  for (const std::string& fault : found.faults) std::printf("%s\n", fault.c_str());
  int faults = static_cast<int>(found.faults.size());
  if (found.segments.empty() && faults == 0) {
    std::printf("%s: there are no segments of an archive\n", archive.c_str());
    return 1;
  }
  // One line a set: they stand one after the other.
  for (size_t i = 0, n = 0; i < found.segments.size(); i += n) {
    const ArchivedSegment& first = found.segments[i];
    n = 1;
    while (i + n < found.segments.size() &&
           found.segments[i + n].header.set_id == first.header.set_id)
      ++n;
    const ArchivedSegment& last = found.segments[i + n - 1];
    std::printf("%s: %zu segments of the set %s, entries %llu to %llu%s\n", archive.c_str(), n,
                HexDigits(first.header.set_id).c_str(),
                static_cast<unsigned long long>(first.header.first),
                static_cast<unsigned long long>(last.trailer.last),
                faults == 0 ? ": all checksums are right, and nothing is missing" : "");
  }
  return faults;
}

}  // namespace mayfly
