#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "protocol/bson_compare.h"
#include "query/plan/planner.h"
#include "query/sort/sorter.h"
#include "storage/keys/key_encoding.h"
#include "tests/unit/query/plan_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

// Whatever plan answers a query, the answer is the same as that of a scan of the whole collection.
// Random documents of every shape that makes bounds hard (arrays, nested arrays, null, missing,
// mixed types), random filters, every index forced in turn. MAYFLY_TEST_ROUNDS asks for a longer
// run.

namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Int(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  bool Chance(int percent) { return Int(100) < percent; }
  template <class T>
  const T& Pick(const std::vector<T>& v) {
    return v[static_cast<size_t>(Int(static_cast<int>(v.size())))];
  }

 private:
  std::mt19937 engine_;
};

struct Shape {
  int arrays_a, arrays_b, arrays_n;  // percent
};

/// Half of the rounds use few different values, so that predicates meet by chance.
bool narrow = false;

void AppendScalar(Random& r, BsonBuilder& b, std::string_view name) {
  static const std::vector<std::string> kStrings = {"",    "a", "ab", "abc",
                                                    "abd", "b", "B",  "z\xc3\xa9"};
  if (narrow && r.Chance(85)) {
    if (r.Chance(8))
      b.AppendNull(name);
    else
      b.Append(name, r.Int(4));
    return;
  }
  switch (r.Int(22)) {
    case 0:
      b.AppendNull(name);
      return;
    case 1:
      b.Append(name, static_cast<double>(r.Int(6)) + (r.Chance(50) ? 0.5 : 0));
      return;
    case 2:
      b.Append(name, int64_t{r.Int(6)});
      return;
    case 3:
      b.AppendDecimal(name, {static_cast<uint64_t>(r.Int(6)), 0x3040000000000000u});
      return;
    case 4:
      b.Append(name, r.Chance(50));
      return;
    case 5:
      b.Append(name, Instant{r.Int(5) - 2});
      return;
    case 6:
      b.AppendTimestamp(name, static_cast<uint64_t>(r.Int(4)));
      return;
    case 7:
      b.AppendObjectId(name, std::string(11, '\x01') + static_cast<char>(r.Int(4)));
      return;
    case 8:
      b.AppendRegex(name, r.Chance(50) ? "^a" : "b", "");
      return;
    case 9:
      b.AppendBinary(name, 0, std::string(static_cast<size_t>(r.Int(3)), 'x'));
      return;
    case 10:
      b.Append(name, BsonValue(r.Chance(50) ? BsonType::kMinKey : BsonType::kMaxKey, "", 0));
      return;
    case 11:
      b.Append(name, r.Chance(50) ? std::numeric_limits<double>::quiet_NaN()
                                  : std::numeric_limits<double>::infinity());
      return;
    case 12:
    case 13:
    case 14:
    case 15:
      b.Append(name, r.Pick(kStrings));
      return;
    case 16: {
      auto d = b.OpenDocument(name);
      if (r.Chance(70)) d.Append(r.Chance(50) ? "x" : "y", r.Int(3));
      return;
    }
    default:
      b.Append(name, r.Int(6));
      return;
  }
}

/// A value that may be an array (of scalars, documents, arrays).
void AppendAny(Random& r, BsonBuilder& b, std::string_view name, int array_percent, int depth = 0) {
  if (!r.Chance(array_percent)) {
    AppendScalar(r, b, name);
    return;
  }
  auto array = b.OpenArray(name);
  for (int n = r.Int(4); n > 0; --n) {
    if (depth < 1 && r.Chance(15)) {
      AppendAny(r, array.raw(), array.NextName(), 100, depth + 1);
    } else if (r.Chance(30)) {
      auto d = array.OpenDocument();
      if (r.Chance(75)) AppendAny(r, d, "x", depth < 1 ? 20 : 0, depth + 1);
      if (r.Chance(75)) AppendAny(r, d, "y", 0, depth + 1);
    } else {
      AppendScalar(r, array.raw(), array.NextName());
    }
  }
}

BsonDocument MakeDocument(Random& r, int id, const Shape& shape) {
  return BuildBson([&](BsonBuilder& b) {
    if (id % 7 == 3)
      b.Append("_id", "s" + std::to_string(id % 10) + std::to_string(id));
    else
      b.Append("_id", id);
    if (r.Chance(85)) AppendAny(r, b, "a", shape.arrays_a);
    if (r.Chance(80)) AppendAny(r, b, "b", shape.arrays_b);
    if (r.Chance(50)) AppendAny(r, b, "c", 0);
    if (r.Chance(75)) {
      if (r.Chance(shape.arrays_n)) {
        auto array = b.OpenArray("n");
        for (int k = r.Int(4) + (narrow ? 1 : 0); k > 0; --k) {
          if (r.Chance(narrow ? 5 : 15)) {
            AppendScalar(r, array.raw(), array.NextName());
            continue;
          }
          auto d = array.OpenDocument();
          if (r.Chance(narrow ? 90 : 70)) AppendAny(r, d, "x", 15);
          if (r.Chance(narrow ? 90 : 70)) AppendAny(r, d, "y", 0);
        }
      } else if (r.Chance(85)) {
        auto d = b.OpenDocument("n");
        if (r.Chance(75)) AppendAny(r, d, "x", shape.arrays_n / 3);
        if (r.Chance(75)) AppendAny(r, d, "y", 0);
      } else {
        AppendScalar(r, b, "n");
      }
    }
  });
}

const std::vector<std::string> kPaths = {"a",   "a", "b",   "b",   "c",    "n.x",
                                         "n.y", "n", "a.x", "a.0", "n.0.x"};
const std::vector<std::string> kInnerPaths = {"x", "y", "0"};

void AppendPredicate(Random& r, BsonBuilder& b, std::string_view path, int depth);

/// The operators of one field: {$gt: …, $lt: …}.
void AppendOperators(Random& r, BsonBuilder& b, int depth, bool inside_elem) {
  static const std::vector<std::string> kCompare = {"$gt", "$gte", "$lt", "$lte"};
  switch (r.Int(17)) {
    case 0:
    case 1:
    case 2:
      AppendScalar(r, b, r.Pick(kCompare));
      return;
    case 3:
    case 4:
      AppendScalar(r, b, r.Chance(50) ? "$gt" : "$gte");
      AppendScalar(r, b, r.Chance(50) ? "$lt" : "$lte");
      return;
    case 5:
      b.Append("$gte", r.Int(4)).Append("$lt", 2 + r.Int(5));
      return;
    case 6:
      AppendScalar(r, b, "$eq");
      return;
    case 7:
      AppendAny(r, b, "$ne", 10);
      return;
    case 8:
    case 9: {
      auto list = b.OpenArray(r.Chance(70) ? "$in" : "$nin");
      for (int n = r.Int(5); n > 0; --n) AppendAny(r, list.raw(), list.NextName(), 8);
      return;
    }
    case 10:
      b.Append("$exists", r.Chance(60));
      return;
    case 11: {
      static const std::vector<std::string> kTypes = {"number", "int",  "string", "null", "array",
                                                      "object", "bool", "date",   "regex"};
      b.Append("$type", r.Pick(kTypes));
      return;
    }
    case 12:
      b.AppendRegex("$regex", r.Pick<std::string>({"^a", "^ab", "b", "^abc?", "^A"}),
                    r.Chance(20) ? "i" : "");
      return;
    case 13: {
      auto m = b.OpenArray("$mod");
      m.Append(2).Append(r.Int(2));
      return;
    }
    case 14:
      if (inside_elem) {
        b.Append("$gte", 1);
      } else {
        b.Append("$size", r.Int(3));
      }
      return;
    case 15: {
      auto n = b.OpenDocument("$not");
      AppendScalar(r, n, r.Pick(kCompare));
      return;
    }
    default: {
      if (depth > 1) {
        b.Append("$lt", 4);
        return;
      }
      auto e = b.OpenDocument("$elemMatch");
      if (r.Chance(50)) {
        AppendOperators(r, e, depth + 1, true);
      } else {
        for (const auto& p : kInnerPaths)
          if (r.Chance(p == "0" ? 10 : 70)) AppendPredicate(r, e, p, depth + 1);
        if (e.size() == 4) e.Append("x", 1);
      }
      return;
    }
  }
}

void AppendPredicate(Random& r, BsonBuilder& b, std::string_view path, int depth) {
  if (r.Chance(30)) {
    // Regular expressions as values of their own are matched as patterns; that is fine too.
    AppendAny(r, b, path, 10);
    return;
  }
  auto d = b.OpenDocument(path);
  AppendOperators(r, d, depth, false);
}

/// A comparison in the language of expressions: a field with a constant on either side, or
/// something no index can serve.
void AppendComparison(Random& r, BsonBuilder& b, int depth) {
  static const std::vector<std::string> kOps = {"$eq", "$eq", "$gt", "$gte", "$lt", "$lte", "$ne"};
  if (depth == 0 && r.Chance(20)) {
    auto all = b.OpenArray(r.Chance(70) ? "$and" : "$or");
    for (int n = 1 + r.Int(2); n > 0; --n) {
      auto d = all.OpenDocument();
      AppendComparison(r, d, 1);
    }
    return;
  }
  auto operands = b.OpenArray(r.Pick(kOps));
  auto constant = [&] {
    auto d = operands.OpenDocument();
    AppendAny(r, d, "$literal", 5);
  };
  const bool first = r.Chance(30);
  if (first) constant();
  operands.Append("$" + r.Pick(kPaths));
  if (!first) constant();
}

/// {$or: [{a: 1}, {a: 2}]}, which is an $in, and branches that may come in the order of a sort.
void AppendDisjunctionOnFields(Random& r, BsonBuilder& b) {
  const std::string path = r.Pick(kPaths);
  auto list = b.OpenArray("$or");
  for (int k = 2 + r.Int(2); k > 0; --k) {
    auto d = list.OpenDocument();
    AppendScalar(r, d, r.Chance(75) ? path : r.Pick(kPaths));
  }
}

void FillFilter(Random& r, BsonBuilder& b, int depth) {
  int n = 1 + r.Int(3);
  bool used_or = false, used_expr = false;
  std::vector<std::string> used;
  for (int i = 0; i < n; ++i) {
    if (depth < 2 && !used_or && r.Chance(18)) {
      used_or = true;
      static const std::vector<std::string> kLogical = {"$or", "$or", "$or", "$and", "$nor"};
      auto list = b.OpenArray(r.Pick(kLogical));
      for (int k = 1 + r.Int(3); k > 0; --k) {
        auto d = list.OpenDocument();
        FillFilter(r, d, depth + 1);
      }
      continue;
    }
    if (depth < 2 && !used_or && r.Chance(8)) {
      used_or = true;
      AppendDisjunctionOnFields(r, b);
      continue;
    }
    if (!used_expr && r.Chance(12)) {
      used_expr = true;
      auto d = b.OpenDocument("$expr");
      AppendComparison(r, d, 0);
      continue;
    }
    if (r.Chance(6)) {
      auto d = b.OpenDocument("_id");
      d.Append("$gte", r.Int(30)).Append("$lt", r.Int(60));
      continue;
    }
    AppendPredicate(r, b, r.Pick(kPaths), depth);
  }
}

/// Predicates on the fields of one index, some of them inside an $elemMatch: where bounds go wrong.
void FillIndexFilter(Random& r, BsonBuilder& b, const IndexInfo& index) {
  std::string elem;
  for (const auto& f : index.fields) {
    size_t dot = f.path.rfind('.');
    if (dot == std::string::npos || f.path.find("0") != std::string::npos) continue;
    if (elem.empty() && r.Chance(50)) elem = f.path.substr(0, dot);
  }
  for (const auto& f : index.fields) {
    if (!r.Chance(85)) continue;
    if (!elem.empty() && f.path.starts_with(elem + ".")) continue;
    if (r.Chance(40)) {
      AppendScalar(r, b, f.path);
    } else if (narrow && r.Chance(60)) {
      auto d = b.OpenDocument(f.path);
      d.Append(r.Chance(50) ? "$gte" : "$lte", r.Int(4));
    } else {
      auto d = b.OpenDocument(f.path);
      if (r.Chance(25))
        d.AppendNull("$ne");
      else
        AppendOperators(r, d, 0, false);
    }
  }
  if (elem.empty()) return;
  auto d = b.OpenDocument(elem);
  auto e = d.OpenDocument("$elemMatch");
  for (const auto& p : kInnerPaths) {
    if (r.Chance(50))
      AppendScalar(r, e, p);
    else
      AppendPredicate(r, e, p, 1);
  }
}

struct IndexChoice {
  const char* spec;
  bool complete;  // has an entry for every document
};
const std::vector<IndexChoice> kIndexes = {
    {R"({"key": {"a": 1}})", true},
    {R"({"key": {"a": -1}})", true},
    {R"({"key": {"b": 1, "a": 1}})", true},
    {R"({"key": {"a": 1, "b": -1}})", true},
    {R"({"key": {"a": -1, "c": 1, "b": 1}})", true},
    {R"({"key": {"n.x": 1}})", true},
    {R"({"key": {"n.x": 1, "n.y": 1}})", true},
    {R"({"key": {"n.y": -1, "n.x": 1, "c": 1}})", true},
    {R"({"key": {"n.x": 1, "c": -1}})", true},
    {R"({"key": {"a.x": 1, "a.y": 1}})", true},
    {R"({"key": {"a.0": 1}})", true},
    {R"({"key": {"c": 1, "a.0": 1}})", true},
    {R"({"key": {"n.0.x": 1}})", true},
    {R"({"key": {"n": 1}})", true},
    {R"({"key": {"c": 1, "a": 1}})", true},
    {R"({"key": {"c": 1}, "sparse": true, "name": "c_sparse"})", false},
    {R"({"key": {"a": 1, "c": 1}, "sparse": true, "name": "ac_sparse"})", false},
    {R"({"key": {"n.x": 1}, "sparse": true, "name": "nx_sparse"})", false},
    {R"({"key": {"a": 1}, "partialFilterExpression": {"a": {"$gt": 2}}, "name": "a_partial"})",
     false},
    {R"({"key": {"b": 1}, "partialFilterExpression": {"b": {"$exists": true}}, "name": "b_partial"})",
     false},
    {R"({"key": {"c": 1}, "partialFilterExpression": {"b": {"$lte": 3}}, "name": "c_partial"})",
     false},
};

std::vector<std::string> Sorted(std::vector<std::string> v) {
  std::sort(v.begin(), v.end());
  return v;
}

std::string Join(const std::vector<std::string>& v) {
  std::string out;
  for (const auto& s : v) out += "\n    " + s;
  return out;
}

/// Fields of a result in a fixed order: a covered projection has them in the index's.
std::string Canonical(BsonView doc) {
  std::vector<std::string> fields;
  for (const auto& e : doc) {
    std::string v = e.value.IsDocument() ? Canonical(e.value.Document()) : ToRelaxedJson(e.value);
    fields.push_back(std::string(e.name) + "=" + v);
  }
  std::sort(fields.begin(), fields.end());
  std::string out = "{";
  for (const auto& f : fields) out += f + ",";
  return out + "}";
}

/// The values of a field as a group sees them, with an empty string for what is missing, and the
/// least (or greatest) sort key among the documents of each.
std::map<std::string, std::string> BestOfEach(const std::vector<BsonDocument>& docs,
                                              const std::string& path, const SortPattern& sort,
                                              bool last) {
  VariableScope scope;
  const BsonDocument spec = BuildBson([&](BsonBuilder& b) { b.Append("p", "$" + path); });
  ExpressionPtr expression = ParseExpression(spec.view()["p"], scope).value();
  std::map<std::string, std::string> out;
  for (const auto& doc : docs) {
    EvalContext eval;
    eval.variables.resize(static_cast<size_t>(scope.slots()));
    eval.root = doc;
    Value value = expression->Evaluate(eval).value();
    std::string group, key;
    if (!value.view().IsNullish()) EncodeKeyValue(value.view(), false, group);
    REQUIRE(sort.AppendKey(doc, nullptr, key).has_value());
    auto [it, fresh] = out.emplace(group, key);
    if (!fresh && (last ? key > it->second : key < it->second)) it->second = key;
  }
  return out;
}

struct Differ {
  PlanStore& store;
  Random& r;

  std::vector<BsonDocument> Documents(QuerySpec spec, int pause) {
    auto e = store.Open(std::move(spec));
    std::vector<BsonDocument> out;
    while (true) {
      auto state = e->Next();
      if (!state) FAIL(state.error().message);
      if (state.value() == PlanExecutor::State::kEof) return out;
      auto d = e->doc();
      if (!d) FAIL(d.error().message);
      out.emplace_back(d.value());
      if (pause > 0 && out.size() % static_cast<size_t>(pause) == 0) {
        if (r.Chance(20)) {
          e->PushBack();
          out.pop_back();
        }
        e->SaveState();
        auto ok = e->RestoreState(*store.op);
        if (!ok) FAIL(ok.error().message);
      }
    }
  }

  void CheckSame(QuerySpec spec, const std::vector<std::string>& wanted, int pause) {
    std::vector<std::string> got;
    for (const auto& d : Documents(std::move(spec), pause)) got.push_back(ToRelaxedJson(d));
    got = Sorted(std::move(got));
    if (got != wanted) {
      INFO("wanted:" << Join(wanted) << "\n  got:" << Join(got));
      FAIL("another answer than the collection scan's");
    }
  }

  void CheckSort(const QuerySpec& base, BsonView sort, BsonValue hint, bool complete) {
    BsonDocument natural = PlanJson(R"({"$natural": 1})");
    QuerySpec all = base;
    all.sort = sort;
    all.hint = natural.view().AsValue();
    auto reference = Documents(std::move(all), 0);
    SortPattern pattern = SortPattern::Parse(sort).value();
    auto keys = [&](const std::vector<BsonDocument>& docs, size_t from, size_t n) {
      std::vector<std::string> out;
      for (size_t i = from; i < docs.size() && (n == 0 || out.size() < n); ++i) {
        std::string key;
        REQUIRE(pattern.AppendKey(docs[i], nullptr, key).has_value());
        out.push_back(std::move(key));
      }
      return out;
    };
    QuerySpec spec = base;
    spec.sort = sort;
    spec.hint = hint;
    spec.skip = r.Chance(30) ? r.Int(4) : 0;
    spec.limit = r.Chance(50) ? 1 + r.Int(10) : 0;
    size_t skip = static_cast<size_t>(spec.skip), limit = static_cast<size_t>(spec.limit);
    auto docs = Documents(std::move(spec), r.Chance(40) ? 1 + r.Int(5) : 0);
    if (!complete) return;
    CAPTURE(ToRelaxedJson(sort), skip, limit);
    if (keys(docs, 0, 0) != keys(reference, skip, limit)) {
      std::string got, wanted;
      for (const auto& d : docs) got += "\n   " + ToRelaxedJson(d);
      for (const auto& d : reference) wanted += "\n   " + ToRelaxedJson(d);
      INFO("got:" << got << "\nall, sorted:" << wanted);
      FAIL("another order than the collection scan's");
    }
  }

  /// What a $group asks for that reads the first or last document of each value.
  void CheckOnePer(const QuerySpec& base, const std::string& path, BsonView sort) {
    QuerySpec all = base;
    BsonDocument natural = PlanJson(R"({"$natural": 1})");
    all.hint = natural.view().AsValue();
    QuerySpec some = base;
    some.sort = sort;
    some.one_per = path;
    some.one_per_last = r.Chance(50);
    const SortPattern pattern = SortPattern::Parse(sort).value();
    CAPTURE(path, ToRelaxedJson(sort), some.one_per_last);
    const bool last = some.one_per_last;
    CHECK(BestOfEach(Documents(std::move(some), r.Chance(30) ? 3 : 0), path, pattern, last) ==
          BestOfEach(Documents(std::move(all), 0), path, pattern, last));
  }
};

bool HasParallelSort(const Shape& shape) { return shape.arrays_a > 0 && shape.arrays_b > 0; }

void Round(PlanStore& store, uint32_t seed) {
  Random r(seed);
  store.Reset();
  narrow = seed % 2 == 0;
  Shape shape{r.Chance(60) ? 30 : 0, r.Chance(25) ? 30 : 0, r.Chance(60) ? 40 : 0};
  if (narrow) shape = {r.Chance(50) ? 60 : 0, 0, r.Chance(70) ? 80 : 0};
  std::vector<IndexChoice> indexes;
  for (int n = 2 + r.Int(4); n > 0; --n) {
    IndexChoice choice = r.Pick(kIndexes);
    if (narrow && indexes.empty()) choice = kIndexes[6];  // two fields below one array
    bool again = std::any_of(indexes.begin(), indexes.end(),
                             [&](const auto& i) { return i.spec == choice.spec; });
    if (again) continue;
    indexes.push_back(choice);
    store.CreateIndex(choice.spec);
  }
  for (int id = 0; id < 60; ++id) {
    auto ok = store.Insert(MakeDocument(r, id, shape));
    // Arrays side by side in one index, or a number that is two things: refused, and so not here.
    if (!ok && ok.error().code != ErrorCode::kCannotIndexParallelArrays &&
        ok.error().code != LocationCode(16746))
      FAIL(ok.error().message);
  }
  Differ differ{store, r};
  BsonDocument natural = PlanJson(R"({"$natural": 1})");
  auto coll = store.Coll();
  std::string index_names;
  for (const auto& i : coll->indexes)
    index_names += i->name + "(" + std::to_string(i->multikey.load()) + ") ";
  for (int q = 0; q < 60; ++q) {
    BsonDocument filter = BuildBson([&](BsonBuilder& b) {
      if (r.Chance(50))
        FillIndexFilter(r, b, *r.Pick(coll->indexes));
      else
        FillFilter(r, b, 0);
    });
    auto parsed = ParseMatch(filter);
    if (!parsed) continue;  // {$in: [regex with options]} and the like
    CAPTURE(seed, q, index_names, ToRelaxedJson(filter));
    QuerySpec base;
    base.coll = coll;
    base.filter = filter;
    QuerySpec scan = base;
    scan.hint = natural.view().AsValue();
    std::vector<std::string> wanted;
    for (const auto& d : differ.Documents(std::move(scan), 0)) wanted.push_back(ToRelaxedJson(d));
    wanted = Sorted(std::move(wanted));

    differ.CheckSame(base, wanted, 0);
    differ.CheckSame(base, wanted, 1 + r.Int(7));
    auto count = MakeCountExecutor(*store.storage, *store.op, base);
    REQUIRE(count.has_value());
    auto counted = count.value()->Count();
    REQUIRE(counted.has_value());
    CHECK(counted.value() == static_cast<int64_t>(wanted.size()));

    static const std::vector<std::string> kSorts = {
        R"({"a": 1})",         R"({"a": -1})",          R"({"b": 1})",
        R"({"n.x": 1})",       R"({"n.x": -1})",        R"({"n.x": 1, "n.y": 1})",
        R"({"a": 1, "c": 1})", R"({"c": -1, "a": -1})", R"({"_id": -1})",
        R"({"a.x": 1})",       R"({"c": 1})",           R"({"n.y": -1, "n.x": 1})"};
    BsonDocument sort = PlanJson(r.Pick(kSorts));
    if (r.Chance(50)) {  // what an index might give
      const IndexInfo& index = *r.Pick(coll->indexes);
      bool turn = r.Chance(50);
      sort = BuildBson([&](BsonBuilder& b) {
        for (size_t f = static_cast<size_t>(r.Int(static_cast<int>(index.fields.size())));
             f < index.fields.size(); ++f)
          b.Append(index.fields[f].path, index.fields[f].descending != turn ? -1 : 1);
      });
    }
    // Two arrays side by side cannot be sorted by, on either side.
    bool sortable = !HasParallelSort(shape);
    if (sortable) differ.CheckSort(base, sort, {}, true);

    static const std::vector<std::string> kProjections = {R"({"_id": 0, "a": 1})",
                                                          R"({"_id": 0, "n.x": 1})",
                                                          R"({"_id": 0, "a": 1, "b": 1})",
                                                          R"({"_id": 0, "c": 1})",
                                                          R"({"_id": 0, "n.x": 1, "n.y": 1})",
                                                          R"({"_id": 0, "a.0": 1})"};
    BsonDocument projection = PlanJson(r.Pick(kProjections));
    auto projected = [&](BsonValue hint) {
      QuerySpec spec = base;
      spec.projection = projection;
      spec.hint = hint;
      std::vector<std::string> out;
      for (const auto& d : differ.Documents(std::move(spec), r.Chance(30) ? 3 : 0))
        out.push_back(Canonical(d));
      return Sorted(std::move(out));
    };
    auto projected_scan = projected(natural.view().AsValue());

    for (const auto& index : coll->indexes) {
      BsonDocument hint = BuildBson([&](BsonBuilder& b) { b.Append("h", index->name); });
      auto clauses = Clauses(*parsed.value());
      IndexAccess access =
          BuildIndexAccess(index, index->multikey, clauses, CollectPredicates(clauses));
      CAPTURE(index->name, access.safe);
      QuerySpec hinted = base;
      hinted.hint = hint.view()["h"];
      if (!access.safe) {
        // The planner would not take it; forced, it may leave documents out but never invents any.
        for (const auto& d : differ.Documents(hinted, 0))
          CHECK(std::binary_search(wanted.begin(), wanted.end(), ToRelaxedJson(d)));
        continue;
      }
      differ.CheckSame(hinted, wanted, 0);
      differ.CheckSame(hinted, wanted, 1 + r.Int(5));
      if (sortable) differ.CheckSort(base, sort, hint.view()["h"], true);
      CAPTURE(ToRelaxedJson(projection));
      CHECK(projected(hint.view()["h"]) == projected_scan);
      auto hinted_count = MakeCountExecutor(*store.storage, *store.op, hinted);
      REQUIRE(hinted_count.has_value());
      CHECK(hinted_count.value()->Count().value() == static_cast<int64_t>(wanted.size()));
    }

    static const std::vector<std::string> kKeys = {"a", "b", "c", "n.x", "a.x", "n", "a.0"};
    const std::string& key = r.Pick(kKeys);
    auto distinct = [&](BsonValue hint) {
      QuerySpec spec = base;
      BsonView none;
      if (q % 3 == 0) spec.filter = none;
      spec.hint = hint;
      auto e = MakeDistinctExecutor(*store.storage, *store.op, spec, key);
      REQUIRE(e.has_value());
      std::vector<std::string> out;
      auto ok = e.value()->Run([&](BsonValue v) -> Result<void> {
        // Equal numbers of different types are one value: whichever came first.
        int64_t n;
        out.push_back(v.ExactInt64(&n)                ? std::to_string(n)
                      : v.IsNumber()                  ? std::to_string(v.NumberAsDouble())
                      : v.IsArray() || v.IsDocument() ? "nested"
                                                      : ToRelaxedJson(v));
        return Ok();
      });
      REQUIRE(ok.has_value());
      return Sorted(std::move(out));
    };
    CAPTURE(key);
    CHECK(distinct({}) == distinct(natural.view().AsValue()));
    if (sortable) differ.CheckOnePer(base, key, sort);
  }
}

}  // namespace

TEST_CASE("Every plan gives the answer of a collection scan", "[plan]") {
  PlanStore store;
  int rounds = 6;
  uint32_t first = 1;
  if (const char* text = std::getenv("MAYFLY_TEST_ROUNDS")) rounds = std::atoi(text);
  if (const char* text = std::getenv("MAYFLY_TEST_SEED"))
    first = static_cast<uint32_t>(std::atoi(text));
  for (int i = 0; i < rounds; ++i) Round(store, first + static_cast<uint32_t>(i));
}

TEST_CASE("A position in an array has the key null where it is no document", "[plan]") {
  PlanStore store;
  store.CreateIndex(R"({"key": {"n.0.x": 1}})");
  store.CreateIndex(R"({"key": {"c": 1, "a.0": 1}})");
  store.Insert(R"({"_id": 1, "n": [2], "a": [5], "c": 1})");
  store.Insert(R"({"_id": 2, "n": [{"x": 1}], "a": {"0": 5}, "c": 1})");
  CHECK(store.Find(R"({"n.0.x": {"$ne": null}})", R"({"_id": 1})", R"({"_id": 1})") ==
        std::vector<std::string>{R"({"_id":1})", R"({"_id":2})"});
  // An index on "a.0" reaches into an array. Projections and expressions do not.
  const auto found = Sorted(store.Find(R"({"c": 1})", "{}", R"({"_id": 0, "a.0": 1})"));
  CHECK(found == std::vector<std::string>{R"({"a":[]})", R"({"a":{"0":5}})"});
  QuerySpec spec;
  BsonDocument filter = PlanJson(R"({"c": 1})");
  spec.filter = filter;
  spec.one_per = "a.0";
  CHECK(store.Run(spec).size() == 2);
}
