#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "query/sort/spill_encryption.h"
#include "tests/unit/query/pipeline_fixture.h"

using namespace mayfly;
using namespace mayfly::test;

namespace {
std::string SortAll(Sorter& sorter, const std::vector<BsonDocument>& docs, const char* field) {
  for (auto& d : docs) REQUIRE(sorter.Add(d));
  REQUIRE(sorter.Finish());
  std::string text;
  StreamDocument next;
  while (true) {
    Result<bool> more = sorter.Next(&next);
    REQUIRE(more);
    if (!more.value()) break;
    text += ValueText(next.doc[field]) + " ";
  }
  return text;
}
SortPattern Pattern(std::string_view json) {
  return std::move(SortPattern::Parse(Json(std::string(json)))).value();
}
}  // namespace

TEST_CASE("Sort order: types, arrays, missing fields, compound keys", "[sorter]") {
  std::vector<BsonDocument> docs;
  for (const char* d :
       {R"({"_id": 1, "a": [3, 7]})", R"({"_id": 2, "a": 5})", R"({"_id": 3})",
        R"({"_id": 4, "a": "x"})", R"({"_id": 5, "a": []})", R"({"_id": 6, "a": null})",
        R"({"_id": 7, "a": {"b": 1}})", R"({"_id": 8, "a": 4.5})"})
    docs.push_back(Json(d));
  Sorter up(Pattern(R"({"a": 1})"), {}), down(Pattern(R"({"a": -1})"), {});
  CHECK(SortAll(up, docs, "_id") == "5 3 6 1 8 2 4 7 ");
  CHECK(SortAll(down, docs, "_id") == "7 4 1 2 8 3 6 5 ");
  std::vector<BsonDocument> pairs;
  for (const char* d : {R"({"_id": 1, "l": [{"x": 1, "y": 9}, {"x": 2, "y": 1}]})",
                        R"({"_id": 2, "l": [{"x": 1, "y": 5}]})"})
    pairs.push_back(Json(d));
  // x and y come from one element: (1, 9) of the first document, not (1, 1).
  Sorter same(Pattern(R"({"l.x": 1, "l.y": 1})"), {});
  CHECK(SortAll(same, pairs, "_id") == "2 1 ");
}

TEST_CASE("Sorting with a limit, on disk and both gives the same as in memory", "[sorter]") {
  std::mt19937 random(7);
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 3000; ++i)
    docs.push_back(BuildBson(
        [&](BsonBuilder& b) { b.Append("_id", i).Append("k", static_cast<int>(random() % 50)); }));
  Sorter all(Pattern(R"({"k": 1})"), {});
  std::string expected = SortAll(all, docs, "_id");
  CHECK(all.spills() == 0);
  Sorter spilled(Pattern(R"({"k": 1})"), {.memory_limit = 10000});
  CHECK(SortAll(spilled, docs, "_id") == expected);
  CHECK(spilled.spills() > 20);
  Sorter tiny(Pattern(R"({"k": 1})"), {.memory_limit = 1});
  CHECK(SortAll(tiny, std::vector<BsonDocument>(docs.begin(), docs.begin() + 300), "k").size() >
        300);
  CHECK(tiny.spills() == 300);
  size_t cut = 0;
  for (int i = 0; i < 20; ++i) cut = expected.find(' ', cut) + 1;
  Sorter top(Pattern(R"({"k": 1})"), {.limit = 20});
  CHECK(SortAll(top, docs, "_id") == expected.substr(0, cut));
  Sorter both(Pattern(R"({"k": 1})"), {.limit = 20, .memory_limit = 1500});
  CHECK(SortAll(both, docs, "_id") == expected.substr(0, cut));
  CHECK(both.spills() > 1);
}

TEST_CASE("The sorter keeps metadata and the caller's bytes beside a document", "[sorter]") {
  for (size_t limit : {size_t{1} << 20, size_t{1}}) {
    Sorter sorter(Pattern(R"({"e": {"$meta": "expireAt"}})"),
                  {.memory_limit = limit, .want_sort_key = true});
    for (int i : {3, 1, 2}) {
      DocumentMetadata m;
      m.expire_at = Instant{i * 1000};
      m.record_id = Value::String("record " + std::to_string(i));
      REQUIRE(sorter.Add(Json("{\"_id\": " + std::to_string(i) + "}"), &m,
                         "extra " + std::to_string(i)));
    }
    REQUIRE(sorter.Finish());
    for (int i : {1, 2, 3}) {
      StreamDocument d;
      REQUIRE(sorter.Next(&d).value());
      CHECK(d.doc["_id"].Int32() == i);
      REQUIRE(d.metadata);
      CHECK(d.metadata->expire_at == Instant{i * 1000});
      CHECK(d.metadata->record_id.view().String() == "record " + std::to_string(i));
      CHECK(d.metadata->sort_key.view().IsArray());
      CHECK(sorter.extra() == "extra " + std::to_string(i));
    }
  }
}

TEST_CASE("Bad sort specifications", "[sorter]") {
  struct Case {
    const char* spec;
    int code;
  };
  for (Case c : std::vector<Case>{{"{}", 15976},
                                  {R"({"a": 0})", 15975},
                                  {R"({"a": "1"})", 15974},
                                  {R"({"a": {"$foo": 1}})", 17312},
                                  {R"({"a": {"$meta": "x"}})", 31138},
                                  {R"({"a.": 1})", 40353}}) {
    INFO(c.spec);
    Result<SortPattern> p = SortPattern::Parse(Json(c.spec));
    REQUIRE(!p);
    CHECK(static_cast<int>(p.error().code) == c.code);
  }
}

namespace {

/// Changes every byte by its place, so that a file that was written with it is another one.
class ToyCipher final : public FileCipher {
 public:
  bool Apply(uint64_t offset, char* data, size_t n) const override {
    for (size_t i = 0; i < n; ++i)
      data[i] = static_cast<char>(data[i] ^ static_cast<char>((offset + i) * 31 % 251 + 1));
    return true;
  }
};
class ToyCiphers final : public FileCiphers {
 public:
  Result<void> MakePrefix(char*) const override { return Error{}; }
  Result<std::unique_ptr<FileCipher>> Open(std::string_view) const override { return Error{}; }
  Result<std::unique_ptr<FileCipher>> Temporary() const override {
    return std::unique_ptr<FileCipher>(std::make_unique<ToyCipher>());
  }
};

/// This process's files without a name.
std::vector<std::filesystem::path> NamelessPaths() {
  std::vector<std::filesystem::path> all;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ec;
    const auto target = std::filesystem::read_symlink(fd.path(), ec);
    if (!ec && target.string().find("(deleted)") != std::string::npos) all.push_back(fd.path());
  }
  return all;
}
/// What they hold.
std::string NamelessFiles() {
  std::string all;
  for (const auto& path : NamelessPaths()) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    all += text.str();
  }
  return all;
}

}  // namespace

TEST_CASE("Spill files are encrypted where the server's files are", "[sorter][spill]") {
  const bool encrypted = GENERATE(false, true);
  large_memory::Budget budget;
  if (encrypted) EncryptSpillFiles(budget, std::make_shared<ToyCiphers>());
  large_memory::BudgetScope scope(budget);
  std::vector<std::pair<std::string, std::string>> records;
  for (size_t i = 0; i < 300; ++i)
    records.emplace_back("key" + std::to_string(i),
                         "canary" + std::to_string(i) + std::string(i * 37 % 3000, 'x'));
  records.emplace_back("", "");
  records.emplace_back("large", "canary" + std::string(200'000, 'l'));
  records.emplace_back("last", "z");
  SpillFile made = std::move(SpillFile::Create({}).value());
  SpillFile file = std::move(made);
  for (const auto& [key, payload] : records) REQUIRE(file.Write(key, payload));
  for (int round = 0; round < 2; ++round) {
    REQUIRE(file.Rewind());
    CHECK((NamelessFiles().find("canary") == std::string::npos) == encrypted);
    std::string key, payload;
    for (const auto& r : records) {
      REQUIRE(file.Read(&key, &payload).value());
      REQUIRE(key == r.first);
      REQUIRE(payload == r.second);
    }
    CHECK_FALSE(file.Read(&key, &payload).value());
  }
  EncryptSpillFiles(budget, nullptr);
}

TEST_CASE("A spill file that was damaged is not believed", "[sorter][spill]") {
  const bool encrypted = GENERATE(false, true);
  large_memory::Budget budget;
  if (encrypted) EncryptSpillFiles(budget, std::make_shared<ToyCiphers>());
  large_memory::BudgetScope scope(budget);
  std::vector<std::pair<std::string, std::string>> records;
  for (int i = 0; i < 4; ++i) records.emplace_back("key", "the same value");
  records.emplace_back("", std::string(50, 'p'));
  const size_t record = 12 + 3 + 14;
  std::string good;
  // How many records come before the error when the file is changed so; -1: there is none.
  const auto read = [&](const std::function<std::string(const std::string&)>& change) {
    const std::vector<std::filesystem::path> before = NamelessPaths();
    SpillFile file = std::move(SpillFile::Create({}).value());
    std::filesystem::path path;
    for (const auto& p : NamelessPaths())
      if (std::find(before.begin(), before.end(), p) == before.end()) path = p;
    REQUIRE_FALSE(path.empty());
    for (const auto& [key, payload] : records) REQUIRE(file.Write(key, payload));
    REQUIRE(file.Rewind());
    {
      std::ifstream in(path, std::ios::binary);
      std::stringstream text;
      text << in.rdbuf();
      good = text.str();
    }
    REQUIRE(static_cast<int64_t>(good.size()) == file.bytes());
    std::ofstream(path, std::ios::binary) << change(good);  // nothing has read it yet
    std::string key, payload;
    for (int n = 0;; ++n) {
      const Result<bool> more = file.Read(&key, &payload);
      if (!more) {
        REQUIRE(more.error().code == ErrorCode::kInternalError);
        REQUIRE(more.error().message.find("damaged") != std::string::npos);
        REQUIRE(key.size() + payload.size() <= good.size());
        return n;
      }
      if (!more.value()) return -1;
      const bool as_written = key == records[static_cast<size_t>(n)].first &&
                              payload == records[static_cast<size_t>(n)].second;
      REQUIRE(as_written);
    }
  };
  CHECK(read([](const std::string& text) { return text; }) == -1);
  for (size_t at = 0; at < good.size(); ++at) {
    INFO(at);
    const int whole = static_cast<int>(std::min<size_t>(at / record, 4));
    for (int bit : {0, 7})
      CHECK(read([&](std::string text) {
              text[at] = static_cast<char>(text[at] ^ (1 << bit));
              return text;
            }) == whole);
    CHECK(read([&](const std::string& text) { return text.substr(0, at); }) == whole);
  }
  // Whole records, each as it was written, in other places.
  if (!encrypted) {
    CHECK(read([&](const std::string& text) {
            return text.substr(record, record) + text.substr(record);
          }) == 0);
    CHECK(read([&](const std::string& text) {
            return text.substr(0, 2 * record) + text.substr(0, record) + text.substr(3 * record);
          }) == 2);
  }
  EncryptSpillFiles(budget, nullptr);
}

TEST_CASE("Spill files have a limit for one operation and one for all", "[sorter][spill]") {
  large_memory::Budget budget, of_another_server;
  large_memory::BudgetScope scope(budget);
  const std::string megabyte(1 << 20, 'x');
  const SpillPlace place;
  const SpillPlace same = place, other;
  REQUIRE(budget.spilled_bytes == 0);
  budget.spill_operation_limit = 6 << 20;
  {
    Result<SpillFile> a = SpillFile::Create(place), b = SpillFile::Create(same),
                      c = SpillFile::Create(other);
    REQUIRE(a);
    REQUIRE(b);
    REQUIRE(c);
    CHECK(a.value().Write("k", megabyte));
    CHECK(b.value().Write("k", megabyte));
    CHECK(budget.spilled_bytes == 4 << 20);
    CHECK(b.value().Write("k", megabyte));
    Result<void> refused = a.value().Write("k", std::string(2 << 20, 'x'));  // one of both
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOutOfDiskSpace);
    CHECK(refused.error().message.find("spillMaxBytesPerOperation") != std::string::npos);
    CHECK(c.value().Write("k", megabyte));
    budget.spill_limit = 8 << 20;
    refused = c.value().Write("k", megabyte + megabyte);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.find("spillMaxBytes)") != std::string::npos);
  }
  CHECK(budget.spilled_bytes == 0);
  CHECK(place.use->bytes == 0);
  CHECK(place.use->files == 2);
  CHECK(other.use->files == 1);
  CHECK(of_another_server.spilled_bytes == 0);
  // A sort gives everything back when it fails.
  budget.spill_operation_limit = 1 << 20;
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 3000; ++i)
    docs.push_back(
        BuildBson([&](BsonBuilder& b) { b.Append("_id", i).Append("s", std::string(1000, 'x')); }));
  {
    Sorter sorter(Pattern(R"({"s": 1})"), {.memory_limit = 200'000});
    bool failed = false;
    for (auto& d : docs) failed = failed || !sorter.Add(d);
    CHECK(failed);
    CHECK(budget.spilled_bytes > 0);
  }
  CHECK(budget.spilled_bytes == 0);
}
