#include "storage/catalog/collection_kind.h"

#include "catalog_fixture.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
using testing::CatalogStore;

namespace {

CollectionInfo Of(CollectionKind kind) {
  CollectionInfo c;
  c.db = "db";
  c.name = "c";
  c.ns = "db.c";
  c.kind = kind;
  return c;
}
constexpr CollectionKind kKinds[] = {CollectionKind::kOrdinary,   CollectionKind::kCapped,
                                     CollectionKind::kClustered,  CollectionKind::kCappedClustered,
                                     CollectionKind::kView,       CollectionKind::kOplog,
                                     CollectionKind::kTimeSeries, CollectionKind::kBuckets};
constexpr int kUses = static_cast<int>(CollectionUse::kArchiveInto) + 1;

}  // namespace

TEST_CASE("Each kind of collection answers each use, and only what it cannot do", "[kinds]") {
  struct Refused {
    CollectionKind kind;
    CollectionUse use;
    ErrorCode code;
    std::string message;
  };
  using K = CollectionKind;
  using U = CollectionUse;
  const ErrorCode view = ErrorCode::kCommandNotSupportedOnView;
  const std::string is_view = "Namespace db.c is a view, not a collection";
  const std::string is_series = "Namespace db.c is a timeseries collection";
  const std::string of_buckets =
      "db.c holds the buckets of a time-series collection: it cannot be renamed, replaced, capped "
      "or archived into";
  const std::vector<Refused> refused = {
      {K::kView, U::kWrite, view, is_view},
      {K::kView, U::kReplace, view, is_view},
      {K::kView, U::kWatch, view, is_view},
      {K::kView, U::kStatistics, view, is_view},
      {K::kView, U::kCreateIndexes, view, "Cannot create indexes on a view: db.c"},
      {K::kView, U::kExplain, view, is_view},
      {K::kView, U::kIndexes, view, is_view},
      {K::kView, U::kRename, view, "cannot rename view: db.c"},
      {K::kView, U::kConvertToCapped, view, is_view},
      {K::kView, U::kCompact, view, "can't compact a view"},
      {K::kView, U::kValidate, view, "Cannot validate a view"},
      {K::kView, U::kArchiveInto, view, "onExpire cannot archive into the view db.c"},
      {K::kOplog, U::kWrite, ErrorCode::kInvalidNamespace, "cannot write to 'db.c'"},
      {K::kOplog, U::kChange, ErrorCode::kIllegalOperation,
       "db.c cannot be changed: it shows the replication log"},
      {K::kCapped, U::kReplace, LocationCode(17152),
       "namespace 'db.c' is capped so it can't be used for $out"},
      {K::kCappedClustered, U::kReplace, LocationCode(17152),
       "namespace 'db.c' is capped so it can't be used for $out"},
      {K::kOplog, U::kReplace, LocationCode(17152),
       "namespace 'db.c' is capped so it can't be used for $out"},
      {K::kTimeSeries, U::kWrite, view, is_series},
      {K::kTimeSeries, U::kWatch, view, is_series},
      {K::kTimeSeries, U::kStatistics, view, is_series},
      {K::kTimeSeries, U::kCreateIndexes, view, is_series},
      {K::kTimeSeries, U::kExplain, view, is_series},
      {K::kTimeSeries, U::kIndexes, view, is_series},
      {K::kTimeSeries, U::kRename, ErrorCode::kIllegalOperation,
       "Renaming time-series collections is not allowed: db.c"},
      {K::kTimeSeries, U::kConvertToCapped, view,
       "a time-series collection cannot be capped: db.c"},
      {K::kTimeSeries, U::kCompact, view, is_series},
      {K::kTimeSeries, U::kValidate, view, is_series},
      {K::kTimeSeries, U::kArchiveInto, view,
       "onExpire cannot archive into the time-series collection db.c"},
      {K::kBuckets, U::kRename, ErrorCode::kIllegalOperation, of_buckets},
      {K::kBuckets, U::kReplace, ErrorCode::kIllegalOperation, of_buckets},
      {K::kBuckets, U::kConvertToCapped, ErrorCode::kIllegalOperation, of_buckets},
      {K::kBuckets, U::kArchiveInto, ErrorCode::kIllegalOperation, of_buckets},
      {K::kBuckets, U::kWatch, ErrorCode::kInvalidNamespace,
       "change streams do not watch the buckets of time series: db.c"},
  };
  for (CollectionKind kind : kKinds) {
    for (int use = 0; use < kUses; ++use) {
      CAPTURE(static_cast<int>(kind), use);
      const auto expected = std::find_if(refused.begin(), refused.end(), [&](const Refused& r) {
        return r.kind == kind && r.use == static_cast<CollectionUse>(use);
      });
      Result<void> answer = CheckUse(Of(kind), static_cast<CollectionUse>(use));
      REQUIRE(answer.has_value() == (expected == refused.end()));
      if (answer) continue;
      CHECK(answer.error().code == expected->code);
      CHECK(answer.error().message == expected->message);
    }
  }
}

TEST_CASE("The configuration of a set is nobody's to write", "[kinds]") {
  CollectionInfo c = Of(CollectionKind::kOrdinary);
  c.db = "local";
  c.name = "system.replset";
  c.ns = "local.system.replset";
  c.unreplicated = true;
  CHECK(CheckUse(c, CollectionUse::kWrite).error().code == ErrorCode::kInvalidNamespace);
  c.ns = "local.other";
  CHECK(CheckUse(c, CollectionUse::kWrite));
}

TEST_CASE("The door says what is missing in the words of the use", "[kinds]") {
  CatalogStore s;
  auto open = [&](std::string_view name, CollectionUse use) {
    return OpenCollection(s.catalog(), "db", name, use);
  };
  for (CollectionUse use :
       {CollectionUse::kWrite, CollectionUse::kReplace, CollectionUse::kWatch,
        CollectionUse::kStatistics, CollectionUse::kCreateIndexes, CollectionUse::kExplain}) {
    auto none = open("none", use);
    REQUIRE(none);
    CHECK(none.value() == nullptr);
  }
  const std::pair<CollectionUse, const char*> needed[] = {
      {CollectionUse::kIndexes, "ns does not exist: db.none"},
      {CollectionUse::kChange, "ns does not exist: db.none"},
      {CollectionUse::kRename, "Source collection db.none does not exist"},
      {CollectionUse::kConvertToCapped, "source collection db.none does not exist"},
      {CollectionUse::kCompact, "collection does not exist"},
      {CollectionUse::kValidate, "Collection 'db.none' does not exist to validate."},
      {CollectionUse::kArchiveInto,
       "onExpire cannot archive into db.none: it does not exist; create it first"},
  };
  for (const auto& [use, message] : needed) {
    auto none = open("none", use);
    REQUIRE(!none);
    CHECK(none.error().code == ErrorCode::kNamespaceNotFound);
    CHECK(none.error().message == message);
  }
  CHECK(open("a$b", CollectionUse::kWrite).error().code == ErrorCode::kInvalidNamespace);
}

TEST_CASE("What is so of a kind", "[kinds]") {
  struct Row {
    CollectionKind kind;
    bool capped, clustered, view;
    int shown;
  };
  for (const Row& r : {Row{CollectionKind::kOrdinary, false, false, false, 1},
                       {CollectionKind::kCapped, true, false, false, 0},
                       {CollectionKind::kClustered, false, true, false, 0},
                       {CollectionKind::kCappedClustered, true, true, false, 0},
                       {CollectionKind::kView, false, false, true, 0},
                       {CollectionKind::kOplog, true, false, false, 0}}) {
    CAPTURE(static_cast<int>(r.kind));
    const CollectionInfo c = Of(r.kind);
    CHECK(c.capped() == r.capped);
    CHECK(c.clustered() == r.clustered);
    CHECK(c.is_view() == r.view);
    CHECK(c.ShownIndexes() == r.shown);
  }
}

TEST_CASE("Kinds of indexes are known by name; those without entries have none", "[kinds][index]") {
  auto kind = [](const char* key) {
    return KindOfKey(ParseIndexKey(testing::Json(key)).value()).id;
  };
  CHECK(kind(R"({"a": 1, "b": -1})") == IndexKindId::kOrdinary);
  CHECK(kind(R"({"a": 1, "b": "hashed"})") == IndexKindId::kHashed);
  CHECK(kind(R"({"a": "text"})") == IndexKindId::kText);
  CHECK(kind(R"({"a": "2d"})") == IndexKindId::k2d);
  CHECK(kind(R"({"a": "2dsphere"})") == IndexKindId::k2dSphere);
  CHECK(kind(R"({"$**": 1})") == IndexKindId::kWildcard);
  CHECK(kind(R"({"a.$**": 1})") == IndexKindId::kWildcard);
  CHECK(kind(R"({"a": "somebody's"})") == IndexKindId::kUnknown);
  for (const char* name : {"hashed", "text", "2d", "2dsphere", "geoHaystack", "$**", "other"})
    CHECK_FALSE(FindIndexKind(name).maintained());
  CHECK(OrdinaryIndex().maintained());
  CHECK(OrdinaryIndex().in_value_order);

  IndexInfo index;
  index.key = testing::Json(R"({"a": "hashed"})");
  index.fields = ParseIndexKey(index.key).value();
  KeySet keys;
  REQUIRE(ExtractKeys(index, testing::Json(R"({"a": 5})"), &keys));
  CHECK(keys.size() == 1);  // the kind was not set: an ordinary one
  index.kind = &KindOfKey(index.fields);
  REQUIRE(ExtractKeys(index, testing::Json(R"({"a": 5})"), &keys));
  CHECK(keys.empty());
}

TEST_CASE("A namespace is parted at its first dot", "[namespace]") {
  CHECK(SplitNamespace("a.b.c").db == "a");
  CHECK(SplitNamespace("a.b.c").collection == "b.c");
  CHECK(SplitNamespace("a.b").whole());
  for (const char* half : {"", "a", "a.", ".b", "."}) {
    CAPTURE(half);
    CHECK_FALSE(SplitNamespace(half).whole());
  }
  CHECK(SplitNamespace("a").db == "a");
  CHECK(JoinNamespace("a", "b.c") == "a.b.c");
}

}  // namespace mayfly
