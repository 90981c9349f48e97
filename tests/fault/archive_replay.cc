// Applies an archive of the log to a copy of a member's data directory and makes that one of no
// set, for tests/fault/archive_run.py.
//
//   archive_replay DIRECTORY ARCHIVE UNTIL [KEY]    UNTIL: seconds:increment, or - for all of it;
//                                                   KEY: a file with the master key
//   archive_replay verify ARCHIVE                   reads all of it
//
// What it did is one line on standard output: applied SECONDS:INCREMENT operations N millis N.
// What is wrong is on standard error, and the status is 1.
#include <cstdio>
#include <cstring>
#include <string>

#include "replication/log_archive.h"
#include "server/archive_wiring.h"
#include "server/at_rest_wiring.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"

using namespace mayfly;

static int Fail(const Error& e) {
  std::fprintf(stderr, "%s: %s\n", std::string(ErrorCodeName(e.code)).c_str(), e.message.c_str());
  return 1;
}

static int Verify(const std::string& archive) {
  auto summary = VerifyArchive({.folder = archive, .ciphers = {}}, {});
  if (!summary) return Fail(summary.error());
  for (const std::string& fault : summary.value().faults)
    std::fprintf(stderr, "%s\n", fault.c_str());
  std::printf("segments %zu entries %llu\n", summary.value().segments.size(),
              static_cast<unsigned long long>(summary.value().entries));
  return summary.value().faults.empty() ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "verify") == 0) return Verify(argv[2]);
  if (argc < 4) return 2;
  std::optional<uint64_t> until;
  unsigned long long seconds = 0, increment = 0;
  if (std::sscanf(argv[3], "%llu:%llu", &seconds, &increment) == 2)
    until = static_cast<uint64_t>(seconds) << 32 | increment;
  MasterKeys keys;
  if (argc > 4) {
    auto key = MasterKey::Read("KEY", argv[4]);
    if (!key) return Fail(key.error());
    keys.now = std::move(key).value();
  }
  SystemClock clock;
  KvEnginePtr engine = MakeRocksEngine();
  auto at_rest = OpenAtRest(argv[1], keys, *engine);
  if (!at_rest) return Fail(at_rest.error());
  if (at_rest.value().ciphers) engine = MakeRocksEngine(nullptr, at_rest.value().ciphers);
  const int64_t begun = clock.MonotonicMicros();
  auto done = ReplayOnDirectory(argv[1], engine, keys, argv[2], until, clock, nullptr);
  if (!done) return Fail(done.error());
  const int64_t micros = clock.MonotonicMicros() - begun;
  KvOptions o;
  o.path = argv[1];
  o.cache_bytes = 32 << 20;
  auto kv = engine->Open(std::move(o));
  if (!kv) return Fail(kv.error());
  if (auto forgotten = ForgetSet(*kv.value()); !forgotten) return Fail(forgotten.error());
  const ReplayProgress& p = done.value();
  std::printf("applied %llu:%llu operations %lld millis %lld\n",
              static_cast<unsigned long long>(p.ts >> 32),
              static_cast<unsigned long long>(p.ts & 0xFFFFFFFF),
              static_cast<long long>(p.operations), static_cast<long long>(micros / 1000));
  return 0;
}
