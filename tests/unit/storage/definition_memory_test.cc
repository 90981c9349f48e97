#include "storage/schema/definition_memory.h"

#include "storage/schema/transaction_schema.h"
#include "tests/unit/storage/catalog_fixture.h"

namespace mayfly::testing {
namespace {

constexpr int64_t kLimit = int64_t{1} << 20;

/// Sets the limit, and takes it back.
struct Limit {
  explicit Limit(int64_t bytes) { DefinitionLimit() = bytes; }
  ~Limit() { DefinitionLimit() = 0; }
};

BsonDocument TextDoc(size_t bytes) {
  return BuildBson([&](BsonBuilder& b) { b.Append("a", std::string(bytes, 'x')); });
}

CollectionInfo WithOptions(std::string name, size_t bytes) {
  CollectionInfo c;
  c.db = "db";
  c.name = std::move(name);
  c.options = TextDoc(bytes);
  return c;
}

IndexInfo Partial(const std::string& field, size_t bytes) {
  IndexInfo i = Spec(R"({"key": {")" + field + R"(": 1}})");
  i.has_partial_filter = true;
  i.partial_filter = TextDoc(bytes);
  i.filter = CompileEqualFilter(i.partial_filter, true).value();
  return i;
}

}  // namespace

TEST_CASE("what defines collections is limited together, of each kind", "[definition_memory]") {
  CatalogStore s;
  const Limit limit(kLimit);
  Catalog& catalog = s.catalog();
  REQUIRE(catalog.Create(*s.op, WithOptions("first", 600'000)));

  CHECK(CodeOf(catalog.Create(*s.op, WithOptions("options", 600'000))) ==
        ErrorCode::kExceededMemoryLimit);
  CollectionInfo view;
  view.db = "db";
  view.name = "view";
  view.kind = CollectionKind::kView;
  view.view_on = "first";
  view.view_pipeline = TextDoc(600'000);
  CHECK(CodeOf(catalog.Create(*s.op, view)) == ErrorCode::kExceededMemoryLimit);
  const CollectionInfoPtr small = s.Make("small");
  CHECK(CodeOf(catalog.CreateIndexes(*s.op, *small, {Partial("a", 600'000)})) ==
        ErrorCode::kExceededMemoryLimit);
  CHECK(CodeOf(catalog.Modify(*s.op, *small, [](CollectionInfo& c) -> Result<void> {
          c.validator = TextDoc(600'000);
          return Ok();
        })) == ErrorCode::kExceededMemoryLimit);
  CHECK(s.Coll("options") == nullptr);
  CHECK(s.Coll("small") == small);

  // What goes gives its memory back.
  REQUIRE(catalog.Drop(*s.op, "db", "first"));
  CHECK(catalog.Create(*s.op, view));
  REQUIRE(catalog.DropDatabase(*s.op, "db"));
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    REQUIRE(catalog.Create(*s.op, WithOptions("again", 600'000)));
    REQUIRE(catalog.DropDatabase(*s.op, "db"));
  }
}

TEST_CASE("what was accepted opens again, and a full catalog can be made smaller",
          "[definition_memory]") {
  CatalogStore s;
  REQUIRE(s.catalog().Create(*s.op, WithOptions("c", 600'000)));
  REQUIRE(s.catalog().CreateIndexes(*s.op, *s.Coll(), {Partial("a", 1000)}));
  const Limit limit(1);
  s.Open();
  REQUIRE(s.Coll() != nullptr);
  CHECK(s.Coll()->options.bytes().size() > 600'000);
  CHECK(CodeOf(s.catalog().GetOrCreate(*s.op, "db", "other")) == ErrorCode::kExceededMemoryLimit);
  auto shrink_to = [&](size_t bytes) {
    return CodeOf(s.catalog().Modify(*s.op, *s.Coll(), [&](CollectionInfo& c) -> Result<void> {
      c.options = TextDoc(bytes);
      return Ok();
    }));
  };
  CHECK(shrink_to(599'999) == ErrorCode::kExceededMemoryLimit);
  CHECK(shrink_to(1000) == ErrorCode::kOk);
  CHECK(s.catalog().ModifyIndex(*s.op, *s.Coll(), "a_1", [](IndexInfo& i) -> Result<void> {
    i.hidden = true;
    return Ok();
  }));
  CHECK(s.catalog().DropIndexes(*s.op, *s.Coll(), {"a_1"}));
  CHECK(s.catalog().Drop(*s.op, "db", "c"));
}

TEST_CASE("one collection with its indexes is as large as a document may be",
          "[definition_memory]") {
  CatalogStore s;
  const CollectionInfoPtr c = s.Make();
  Result<void> r = Ok();
  int made = 0;
  while (r && made < 40) {
    r = s.catalog().CreateIndexes(*s.op, *s.Coll(), {Partial("f" + std::to_string(made), 1 << 20)});
    if (r) ++made;
  }
  CHECK(made == 15);
  CHECK(CodeOf(r) == ErrorCode::kBSONObjectTooLarge);
  CHECK(CodeOf(s.catalog().Create(*s.op, WithOptions("large", 17 << 20))) ==
        ErrorCode::kBSONObjectTooLarge);
}

TEST_CASE("what a transaction makes counts until it ends", "[definition_memory]") {
  CatalogStore s;
  const Limit limit(kLimit);
  auto begin = [&](Operation& op, WriteUnit& unit, ReadView* base) {
    *base = *ReadPoint::Take(*s.storage, 0)->View();
    auto catalog = std::make_shared<TransactionCatalog>(*base, s.catalog());
    BeginTransactionUnit(unit, base->snapshot(), catalog, 0);
    return CodeOf(CreateInTransaction(*s.storage, unit, op, WithOptions("c", 600'000)));
  };
  {
    Operation op(s.clock);
    WriteUnit unit(*s.storage, op);
    ReadView base;
    REQUIRE(begin(op, unit, &base) == ErrorCode::kOk);
    CHECK(CodeOf(CreateInTransaction(*s.storage, unit, op, WithOptions("d", 600'000))) ==
          ErrorCode::kExceededMemoryLimit);
    CHECK(CodeOf(s.catalog().Create(*s.op, WithOptions("e", 600'000))) ==
          ErrorCode::kExceededMemoryLimit);
  }
  CHECK(s.catalog().Create(*s.op, WithOptions("e", 600'000)));
}

TEST_CASE("who reads an earlier moment does not keep the memory of all that was dropped",
          "[definition_memory]") {
  CatalogStore s;
  const Limit limit(kLimit);
  s.Make("kept");
  const auto moment = s.catalog().PinMoment();
  for (int i = 0; i < 30; ++i) {
    CAPTURE(i);
    REQUIRE(s.catalog().Create(*s.op, WithOptions("c", 100'000)));
    REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  }
  CHECK(CodeOf(moment->Find("db", "kept")) == ErrorCode::kSnapshotUnavailable);
  CHECK(moment->Find("other", "kept").value() == nullptr);
  CHECK(s.catalog().PinMoment()->Find("db", "kept").value() != nullptr);
}

TEST_CASE("who changes definitions of one database does not end reads of others",
          "[definition_memory]") {
  CatalogStore s;
  const Limit limit(kLimit);
  CollectionInfo small = WithOptions("kept", 100);
  small.db = "other";
  REQUIRE(s.catalog().Create(*s.op, small));
  const auto moment = s.catalog().PinMoment();
  // The change before all others is the oldest, but not of the database that has the most.
  REQUIRE(s.catalog().Drop(*s.op, "other", "kept"));
  for (int i = 0; i < 30; ++i) {
    CAPTURE(i);
    REQUIRE(s.catalog().Create(*s.op, WithOptions("c", 100'000)));
    REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  }
  CHECK(CodeOf(moment->Find("db", "c")) == ErrorCode::kSnapshotUnavailable);
  CHECK(moment->Find("other", "kept").value() != nullptr);
}

TEST_CASE("one database does not take all memory of definitions", "[definition_memory]") {
  CatalogStore s;
  const Limit limit(kLimit);
  int number = 0;
  auto fill = [&](const std::string& db) {
    for (int made = 0;; ++made) {
      CollectionInfo c = WithOptions("c" + std::to_string(++number), 20'000);
      c.db = db;
      const ErrorCode code = CodeOf(s.catalog().Create(*s.op, c));
      if (code == ErrorCode::kOk) continue;
      CHECK(code == ErrorCode::kExceededMemoryLimit);
      return made;
    }
  };
  const int first = fill("first");
  CHECK(first > 30);
  CHECK(first < 40);  // three quarters of 1 MiB, in pieces of some 21 KB
  // Others still make collections, each database about half of what is then left.
  CHECK(fill("second") > 3);
  CHECK(fill("third") >= 1);
  CHECK(fill("first") == 0);
  CollectionInfo small;
  small.db = "admin";
  small.name = "small";
  CHECK(s.catalog().Create(*s.op, small));
  // What goes is there for the same database again.
  REQUIRE(s.catalog().DropDatabase(*s.op, "second"));
  REQUIRE(s.catalog().DropDatabase(*s.op, "third"));
  REQUIRE(s.catalog().DropDatabase(*s.op, "first"));
  CHECK(fill("first") >= first - 1);
}

}  // namespace mayfly::testing
