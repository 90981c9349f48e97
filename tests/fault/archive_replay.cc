// Applies an archive of the log to a copy of a member's data directory and makes that one of no
// set, for tests/fault/archive_run.py.
//
//   archive_replay DIRECTORY ARCHIVE UNTIL [KEY]    UNTIL: seconds:increment, or - for all of it;
//                                                   KEY: a file with the master key
//   archive_replay verify ARCHIVE                   reads all of it
//   archive_replay each DIRECTORY ARCHIVE NS…       comes past the times that lines of standard
//                                                   input name as UNTIL does, in order, and shows
//                                                   what is there, but for the collections NS
//
// What it did is one line on standard output: applied SECONDS:INCREMENT operations N millis N.
// `each` writes BSON: of each collection {ns} and {ns, doc, expireAt (null: none)}*, and behind
// those of one time {faults: [ns of what is not valid]}. It ends early behind a time at which an
// entry of the log was applied in part.
// What is wrong is on standard error, and the status is 1.
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "protocol/bson_builder.h"
#include "query/match/record_filter.h"
#include "replication/log_archive.h"
#include "server/archive_wiring.h"
#include "server/at_rest_wiring.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"

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

static void Write(const BsonDocument& doc) {
  const std::string_view bytes = doc.view().bytes();
  (void)std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

static Result<void> ShowMoment(Storage& storage, const std::set<std::string>& left_out) {
  Operation op(storage.clock());
  std::vector<std::string> faults;
  for (const CollectionInfoPtr& c : storage.catalog().ListAll()) {
    if (c->is_view() || c->source || left_out.contains(c->ns)) continue;
    Write(BuildBson([&](BsonBuilder& b) { b.Append("ns", c->ns); }));
    const std::unique_ptr<RecordCursor> cursor = storage.ScanRecords(c, {});
    for (;;) {
      MAYFLY_TRY(const bool more, cursor->Next());
      if (!more) break;
      Write(BuildBson([&](BsonBuilder& b) {
        b.Append("ns", c->ns).Append("doc", cursor->doc());
        if (cursor->expire_at())
          b.Append("expireAt", *cursor->expire_at());
        else
          b.AppendNull("expireAt");
      }));
    }
    std::string reply;
    {
      BsonBuilder b(reply);
      MAYFLY_TRY(storage.Validate(op, c, /*full=*/true, b));
    }
    if (!BsonView(reply.data())["valid"].Truthy()) faults.push_back(c->ns);
  }
  Write(BuildBson([&](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("faults");
    for (const std::string& ns : faults) list.Append(ns);
  }));
  return Ok();
}

static Result<void> Each(const std::string& directory, const std::string& archive,
                         const std::set<std::string>& left_out) {
  SystemClock clock;
  StorageOptions o;
  o.path = directory;
  o.clock = &clock;
  o.cache_bytes = 32 << 20;
  o.engine = MakeRocksEngine();
  o.logged = true;
  o.compile_filter = [&clock](BsonView filter, bool for_index) {
    return CompileRecordFilter(filter, for_index, &clock);
  };
  MAYFLY_TRY(const std::unique_ptr<Storage> storage, Storage::Open(std::move(o)));
  ReplayRequest request;
  request.archive.folder = archive;
  unsigned long long seconds = 0, increment = 0;
  while (std::scanf("%llu:%llu", &seconds, &increment) == 2) {
    request.until = static_cast<uint64_t>(seconds) << 32 | increment;
    MAYFLY_TRY(const ReplayProgress done, ReplayArchive(*storage, request));
    MAYFLY_TRY(ShowMoment(*storage, left_out));
    if (done.in_part) break;
  }
  return Ok();
}

int main(int argc, char** argv) {
  if (argc >= 4 && std::strcmp(argv[1], "each") == 0) {
    auto done = Each(argv[2], argv[3], {argv + 4, argv + argc});
    return done ? 0 : Fail(done.error());
  }
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
