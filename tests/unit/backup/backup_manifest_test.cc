#include <catch2/catch.hpp>
#include <random>

#include "backup/manifest.h"
#include "protocol/bson_builder.h"
#include "security/crypto.h"

using namespace mayfly;

namespace {

BackupManifest Example() {
  BackupManifest m;
  m.time = Instant{1'893'499'200'123};
  m.id = MakeBackupId(m.time, "\x01\x02\x03\x04\x05\x06");
  m.server_version = "0.1.0";
  m.set_name = "rs0";
  m.set_id = std::string(12, 'S');
  m.term = 7;
  m.index = uint64_t{1} << 40;
  m.ts = uint64_t{1'893'499'200} << 32 | 5;
  m.databases = 2;
  m.collections = 3;
  m.indexes = 4;
  m.documents = 1'000'000;
  m.bytes = 123'456'789;
  m.key_id = "00112233aabbccdd";
  m.files = {{"000012.sst", 1 << 26, std::string(32, 'a'), std::string(16, 'b')},
             {"CURRENT", 16, std::string(32, '\0'), std::string(16, '\xFF')}};
  return m;
}

/// A manifest with this body and a right checksum: only what is in the body is wrong.
std::string WithBody(BsonView body) {
  std::string s("MayflyBM\1", 9);
  const auto n = static_cast<uint32_t>(body.size());
  for (int shift = 0; shift < 32; shift += 8) s += static_cast<char>(n >> shift);
  s += body.bytes();
  s += HashOf(HashKind::kSha256, s).view();
  return s;
}

BsonDocument Body(const std::function<void(BsonBuilder&)>& files,
                  std::string_view id = "20300101T120000000Z-010203040506") {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("id", id).Append("time", Instant{1}).Append("serverVersion", "0.1.0");
    {
      BsonBuilder c = b.OpenDocument("catalog");
      for (const char* n : {"databases", "collections", "indexes", "documents", "bytes"})
        c.Append(n, int64_t{1});
    }
    files(b);
  });
}

void AppendFile(BsonArrayBuilder& list, std::string_view name, int64_t size, size_t sum,
                size_t tag) {
  BsonBuilder d = list.OpenDocument();
  d.Append("name", name).Append("size", size);
  d.AppendBinary("sum", 0, std::string(sum, 'x')).AppendBinary("tag", 0, std::string(tag, 'y'));
}

}  // namespace

TEST_CASE("A manifest comes back as it was", "[backup]") {
  const BackupManifest m = Example();
  auto back = BackupManifest::Decode(m.Encode());
  REQUIRE(back);
  CHECK(back.value() == m);
  CHECK(m.id == "20300101T120000123Z-010203040506");
  CHECK(m.TotalBytes() == (1 << 26) + 16);
  BackupManifest alone = m;
  alone.set_name.clear();
  alone.set_id.clear();
  alone.term = alone.index = alone.ts = 0;
  alone.key_id.clear();
  back = BackupManifest::Decode(alone.Encode());
  REQUIRE(back);
  CHECK(back.value() == alone);
}

TEST_CASE("A manifest with any byte changed, or cut anywhere, is refused", "[backup]") {
  const std::string bytes = Example().Encode();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x20);
    CHECK_FALSE(BackupManifest::Decode(changed));
    CHECK_FALSE(BackupManifest::Decode(std::string_view(bytes).substr(0, i)));
  }
  CHECK_FALSE(BackupManifest::Decode(bytes + "x"));
  std::string newer = bytes;
  newer[8] = 2;
  auto refused = BackupManifest::Decode(newer);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnsupportedFormat);
}

TEST_CASE("A manifest with a right checksum and a hostile body is refused", "[backup]") {
  auto refused = [](const BsonDocument& body) {
    auto r = BackupManifest::Decode(WithBody(body.view()));
    return !r && r.error().code == ErrorCode::kInternalError;
  };
  auto with_file = [](std::string_view name, int64_t size, size_t sum, size_t tag) {
    return Body([&](BsonBuilder& b) {
      BsonArrayBuilder list = b.OpenArray("files");
      AppendFile(list, name, size, sum, tag);
    });
  };
  REQUIRE(BackupManifest::Decode(WithBody(with_file("a.sst", 1, 32, 16).view())));
  for (const char* name : {"", ".", "..", "../x", "/etc/passwd", "a/b", ".hidden"})
    CHECK(refused(with_file(name, 1, 32, 16)));
  CHECK(refused(with_file(std::string_view("a\0b", 3), 1, 32, 16)));
  CHECK(refused(with_file(std::string(300, 'n'), 1, 32, 16)));
  CHECK(refused(with_file("a.sst", -1, 32, 16)));
  CHECK(refused(with_file("a.sst", 1, 31, 16)));
  CHECK(refused(with_file("a.sst", 1, 32, 17)));
  CHECK(refused(Body([](BsonBuilder&) {})));
  CHECK(refused(Body([](BsonBuilder& b) { b.Append("files", "none"); })));
  CHECK(refused(Body([](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("files");
    AppendFile(list, "a.sst", 1, 32, 16);
    AppendFile(list, "a.sst", 1, 32, 16);
  })));
  for (const char* id : {"", "../x", "a/b", "a b"})
    CHECK(refused(Body([](BsonBuilder& b) { b.OpenArray("files"); }, id)));
  CHECK(refused(Body([](BsonBuilder& b) {
    b.OpenArray("files").Done();
    b.Append("set", "no document");
  })));
  CHECK(refused(Body([](BsonBuilder& b) {
    b.OpenArray("files").Done();
    b.OpenDocument("position").Append("term", 1);
  })));
}

TEST_CASE(
    "A manifest with a right checksum that would restore nothing, or wrong numbers, is refused",
    "[backup]") {
  auto refused = [](const BackupManifest& m) {
    auto r = BackupManifest::Decode(m.Encode());
    return !r && r.error().code == ErrorCode::kInternalError;
  };
  const BackupManifest good = Example();
  BackupManifest m = good;
  // What is shown to who restores cannot steer a terminal.
  m.key_id = "\x1b[2J";
  CHECK(refused(m));
  m = good;
  m.server_version = "1.0\x1b[2J";
  CHECK(refused(m));
  m = good;
  m.files.clear();
  CHECK(refused(m));  // it was restored to an empty server
  for (int64_t BackupManifest::*count :
       {&BackupManifest::databases, &BackupManifest::collections, &BackupManifest::indexes}) {
    m = good;
    m.*count = -1;
    CHECK(refused(m));
  }
  for (uint64_t BackupManifest::*number : {&BackupManifest::term, &BackupManifest::index}) {
    m = good;
    m.*number = uint64_t{1} << 63;
    CHECK(refused(m));
  }
  m = good;
  m.files[0].size = INT64_MAX;
  m.files[1].size = 0;
  CHECK(BackupManifest::Decode(m.Encode()));
  m.files[1].size = 1;
  CHECK(refused(m));
  m = good;
  m.latest_index = m.index + 5;
  m.latest_ts = m.ts + 5;
  auto back = BackupManifest::Decode(m.Encode());
  REQUIRE(back);
  CHECK(back.value() == m);
  m.latest_index = m.index - 1;
  CHECK(refused(m));
  m.latest_index = m.index;
  m.latest_ts = m.ts - 1;
  CHECK(refused(m));
  // Timestamps of after 2038 have the highest bit.
  m = good;
  m.ts = uint64_t{0x90000000} << 32;
  CHECK(BackupManifest::Decode(m.Encode()));
}

TEST_CASE("Random bytes are no manifest", "[backup]") {
  std::mt19937 random(4711);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 400, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (round % 2 == 0) bytes.insert(0, "MayflyBM\1");
    CHECK_FALSE(BackupManifest::Decode(bytes));
  }
}
