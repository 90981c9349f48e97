#include "storage/catalog/index_keys.h"

#include <rapidcheck.h>

#include <set>

#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// The keys of a document as text: `[a b] [a c]`, sorted as the index sorts them.
std::string Keys(std::string_view spec, std::string_view doc, uint64_t* multikey = nullptr) {
  IndexInfo index = Spec(spec);
  BsonDocument d = Json(doc);
  KeySet set;
  auto r = ExtractKeys(index, d, &set);
  if (!r) {
    CHECK(set.empty());
    return "error " + std::to_string(static_cast<int>(r.error().code)) + " " + r.error().message;
  }
  if (multikey) *multikey = set.multikey();
  std::string out;
  for (size_t i = 0; i < set.size(); ++i) {
    auto key = DecodeIndexKey(index, set.values(i), set.type_bits(i));
    if (!key) return key.error().message;
    std::string one;
    for (const BsonElement& e : key.value().view()) {
      one += (one.empty() ? "" : ",") +
             (e.value.Is(BsonType::kUndefined) ? "undefined" : ToRelaxedJson(e.value));
    }
    out += (out.empty() ? "" : " ") + std::string("(") + one + ")";
  }
  return out;
}

}  // namespace

TEST_CASE("Index keys follow MongoDB's rules for paths and arrays", "[index_keys]") {
  struct Case {
    const char *spec, *doc, *keys;
    uint64_t multikey;
  };
  const Case cases[] = {
      // Scalars, missing, sub-documents.
      {R"({"key":{"a":1}})", R"({"_id":1,"a":5})", "(5)", 0},
      {R"({"key":{"a":-1}})", R"({"a":"x"})", "(\"x\")", 0},
      {R"({"key":{"a":1}})", R"({"b":5})", "(null)", 0},
      {R"({"key":{"a":1}})", R"({"a":null})", "(null)", 0},
      {R"({"key":{"a.b":1}})", R"({"a":{"b":4}})", "(4)", 0},
      {R"({"key":{"a.b":1}})", R"({"a":4})", "(null)", 0},
      {R"({"key":{"a":1,"b":1}})", R"({"a":4})", "(4,null)", 0},
      {R"({"key":{"a":1,"b":-1}})", R"({"b":1,"a":4})", "(4,1)", 0},
      // Arrays at the end of the path.
      {R"({"key":{"a":1}})", R"({"a":[3,1,2]})", "(1) (2) (3)", 1},
      {R"({"key":{"a":1}})", R"({"a":[1,1.0,1]})", "(1)", 1},
      {R"({"key":{"a":1}})", R"({"a":[5]})", "(5)", 1},
      {R"({"key":{"a":1}})", R"({"a":[]})", "(undefined)", 1},
      {R"({"key":{"a":1}})", R"({"a":[[1,2],3]})", "(3) ([ 1, 2 ])", 1},
      {R"({"key":{"a":1}})", R"({"a":[[]]})", "([  ])", 1},
      {R"({"key":{"a":1}})", R"({"a":[null,2]})", "(null) (2)", 1},
      {R"({"key":{"a":1,"b":1}})", R"({"a":[1,2],"b":9})", "(1,9) (2,9)", 1},
      {R"({"key":{"b":1,"a":1}})", R"({"a":[1,2],"b":9})", "(9,1) (9,2)", 2},
      // Arrays on the path.
      {R"({"key":{"a.b":1}})", R"({"a":[{"b":1},{"b":2}]})", "(1) (2)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[{"b":1},{"c":2},7]})", "(null) (1)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[]})", "(null)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[1,2]})", "(null)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[{"b":[1,2]},{"b":3}]})", "(1) (2) (3)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[{"b":[]}]})", "(undefined)", 1},
      {R"({"key":{"a.b":1}})", R"({"a":[[{"b":1}]]})", "(null)", 1},
      {R"({"key":{"a.b":1,"a.c":1}})", R"({"a":[{"b":1,"c":2},{"b":3,"c":4}]})", "(1,2) (3,4)", 3},
      {R"({"key":{"a.b":1,"a.c":1}})", R"({"a":[{"b":1},{"c":4}]})", "(null,4) (1,null)", 3},
      {R"({"key":{"a":1,"a.b":1}})", R"({"a":[]})", "(undefined,null)", 3},
      {R"({"key":{"a":1,"a.b":1}})", R"({"a":[{"b":1}]})", "({ \"b\" : 1 },1)", 3},
      {R"({"key":{"a.b.c":1}})", R"({"a":[{"b":[{"c":1},{"c":2}]},{"b":{"c":3}}]})", "(1) (2) (3)",
       1},
      // Positions.
      {R"({"key":{"a.0":1}})", R"({"a":[7,8]})", "(7)", 0},
      {R"({"key":{"a.1":1}})", R"({"a":[7,8]})", "(8)", 0},
      {R"({"key":{"a.2":1}})", R"({"a":[7,8]})", "(null)", 1},
      {R"({"key":{"a.0":1}})", R"({"a":{"0":4}})", "(4)", 0},
      {R"({"key":{"a.0":1}})", R"({"a":[[1,2],3]})", "(1) (2)", 1},
      {R"({"key":{"a.0":1}})", R"({"a":[[]]})", "(undefined)", 1},
      {R"({"key":{"a.0":1}})", R"({"a":[]})", "(null)", 1},
      {R"({"key":{"a.0.b":1}})", R"({"a":[{"b":1},{"b":2}]})", "(1)", 0},
      {R"({"key":{"a.0.b":1}})", R"({"a":[[{"b":1},{"b":3}]]})", "(1) (3)", 1},
      {R"({"key":{"a.0.0":1}})", R"({"a":[[5,6],7]})", "(5)", 0},
      {R"({"key":{"a.1":1}})", R"({"a":[{"1":4}]})", "(4)", 1},
      {R"({"key":{"a.0":1,"a":1}})", R"({"a":[1,2]})", "(1,1) (1,2)", 2},
      // Sparse and partial.
      {R"({"key":{"a":1},"sparse":true})", R"({"b":1})", "", 0},
      {R"({"key":{"a":1},"sparse":true})", R"({"a":null})", "(null)", 0},
      {R"({"key":{"a":1},"sparse":true})", R"({"a":[]})", "(undefined)", 1},
      {R"({"key":{"a.b":1},"sparse":true})", R"({"a":[{"b":1},{"c":1}]})", "(1)", 1},
      {R"({"key":{"a":1,"b":1},"sparse":true})", R"({"b":1})", "(null,1)", 0},
      {R"({"key":{"a":1,"b":1},"sparse":true})", R"({"c":1})", "", 0},
      {R"({"key":{"a":1},"partialFilterExpression":{"x":1}})", R"({"a":1,"x":2})", "", 0},
      {R"({"key":{"a":1},"partialFilterExpression":{"x":1}})", R"({"a":1,"x":1})", "(1)", 0},
      // Not maintained.
      {R"({"key":{"a":"hashed"}})", R"({"a":1})", "", 0},
  };
  for (const Case& c : cases) {
    CAPTURE(c.spec, c.doc);
    uint64_t multikey = 0;
    CHECK(Keys(c.spec, c.doc, &multikey) == c.keys);
    CHECK(multikey == c.multikey);
  }
}

TEST_CASE("Arrays of measurements leave no bucket without entries", "[index_keys]") {
  // What an index of an earlier version has met must still be deleted and merged.
  const auto keys = [](std::string_view doc, uint64_t measured) {
    IndexInfo index = Spec(R"({"key":{"m":1,"min":1,"max":1}})");
    index.measured = measured;
    KeySet set;
    const Result<void> r = ExtractKeys(index, Json(doc), &set);
    return std::tuple(r ? ErrorCode() : r.error().code, set.size(), set.multikey());
  };
  constexpr const char *kBoth = R"({"m":1,"min":[1],"max":[1,2]})",
                       *kGreatest = R"({"m":1,"min":1,"max":[1,2]})",
                       *kMeta = R"({"m":[1,2],"min":1,"max":[2]})";
  CHECK(keys(kBoth, 0) == std::tuple(ErrorCode::kCannotIndexParallelArrays, 0u, 0u));
  CHECK(keys(kBoth, 6) == std::tuple(ErrorCode(), 1u, 6u));
  // Entries that there were already stay the same.
  CHECK(keys(kGreatest, 0) == std::tuple(ErrorCode(), 2u, 4u));
  CHECK(keys(kGreatest, 6) == std::tuple(ErrorCode(), 2u, 4u));
  CHECK(keys(kMeta, 6) == std::tuple(ErrorCode(), 2u, 5u));
}

TEST_CASE("What cannot be indexed is refused with MongoDB's codes", "[index_keys]") {
  CHECK(Keys(R"({"key":{"a":1,"b":1}})", R"({"a":[1],"b":[2]})") ==
        "error 171 cannot index parallel arrays [b] [a]");
  CHECK(Keys(R"({"key":{"a.x":1,"b.y":1}})", R"({"a":[],"b":[]})") ==
        "error 171 cannot index parallel arrays [b] [a]");
  CHECK(Keys(R"({"key":{"a.b":1,"a.c":1}})", R"({"a":[{"b":[1],"c":[2]}]})") ==
        "error 171 cannot index parallel arrays [c] [b]");
  CHECK(Keys(R"({"key":{"a.0":1}})", R"({"a":[{"0":1}]})").substr(0, 11) == "error 16746");
}

namespace {

/// The rules again, without care for speed: a set of keys made of values, a missing value null.
struct Model {
  using Key = std::vector<std::string>;
  std::set<Key> keys;
  bool parallel = false;

  static std::string Encode(BsonValue v) {
    std::string s;
    EncodeKeyValue(v, false, s);
    return s;
  }
  struct Open {
    BsonValue at;
    std::vector<std::string> path;
    bool done = false;
  };
  void Run(std::vector<Open> fields) {
    const char* array = nullptr;
    BsonValue array_value;
    for (Open& f : fields) {
      while (!f.done && !f.at.IsArray()) {
        if (f.path.empty()) {
          f.done = true;
        } else if (f.at.IsDocument()) {
          f.at = f.at.Document().Find(f.path.front());
          f.path.erase(f.path.begin());
          if (f.at.missing()) f.path.clear();
        } else {
          f.at = {};
          f.path.clear();
        }
      }
      if (f.done) continue;
      if (array && array != f.at.data()) parallel = true;
      array = f.at.data();
      array_value = f.at;
    }
    if (parallel) return;
    if (!array) {
      Key k;
      for (Open& f : fields)
        k.push_back(Encode(f.at.missing() ? BsonValue(BsonType::kNull, "", 0) : f.at));
      keys.insert(k);
      return;
    }
    std::vector<BsonValue> elements;
    for (const BsonElement& e : array_value.Document()) elements.push_back(e.value);
    if (elements.empty()) elements.push_back({BsonType::kUndefined, "", 0});
    for (BsonValue e : elements) {
      std::vector<Open> next = fields;
      for (Open& f : next) {
        if (f.done) continue;
        if (f.path.empty()) {
          f = {e, {}, true};
        } else {
          f.at = e.IsDocument() ? e : BsonValue();
          if (!e.IsDocument()) f = {{}, {}, true};
        }
      }
      Run(std::move(next));
    }
  }
};

void AppendRandom(BsonBuilder& b, std::string_view name, int depth, bool in_array) {
  int kind = *rc::gen::inRange(0, depth > 0 ? 8 : 4);
  switch (kind) {
    case 0:
      b.Append(name, *rc::gen::inRange(0, 4));
      break;
    case 1:
      b.Append(name, static_cast<double>(*rc::gen::inRange(0, 4)));
      break;
    case 2:
      b.Append(name, "s");
      break;
    case 3:
      b.AppendNull(name);
      break;
    case 4:
    case 5: {
      auto d = b.OpenDocument(name);
      for (const char* f : {"a", "b", "c"}) {
        if (*rc::gen::inRange(0, 3) > 0) AppendRandom(d, f, depth - 1, false);
      }
      break;
    }
    default: {
      auto a = b.OpenArray(name);
      int n = *rc::gen::inRange(0, 4);
      for (int i = 0; i < n; ++i)
        AppendRandom(a.raw(), a.NextName(), in_array ? 0 : depth - 1, true);
    }
  }
}

}  // namespace

TEST_CASE("Key extraction agrees with a simple model on random documents", "[index_keys]") {
  bool ok = rc::check([] {
    BsonDocument doc = BuildBson([](BsonBuilder& b) {
      for (const char* f : {"a", "b"}) AppendRandom(b, f, 3, false);
    });
    IndexInfo index = Spec(*rc::gen::element<std::string>(
        R"({"key":{"a":1}})", R"({"key":{"a.b":1}})", R"({"key":{"a.b.c":1}})",
        R"({"key":{"a":1,"b":1}})", R"({"key":{"a.b":1,"a.c":1}})",
        R"({"key":{"a":1,"a.b":1,"b":1}})", R"({"key":{"b.a":1,"a.a.a":1}})"));
    Model model;
    std::vector<Model::Open> fields;
    for (auto& f : index.fields) {
      Model::Open o{doc.view().AsValue(), {}, false};
      for (size_t at = 0; at <= f.path.size();) {
        size_t dot = std::min(f.path.find('.', at), f.path.size());
        o.path.push_back(f.path.substr(at, dot - at));
        at = dot + 1;
      }
      fields.push_back(o);
    }
    model.Run(fields);
    KeySet set;
    auto r = ExtractKeys(index, doc, &set);
    if (model.parallel) {
      RC_ASSERT(!r && r.error().code == ErrorCode::kCannotIndexParallelArrays);
      return;
    }
    RC_ASSERT(r.has_value());
    std::vector<std::string> expected, got;
    for (auto& k : model.keys) {
      std::string all;
      for (auto& part : k) all += part;
      expected.push_back(all);
    }
    for (size_t i = 0; i < set.size(); ++i) got.emplace_back(set.values(i));
    std::sort(expected.begin(), expected.end());
    RC_ASSERT(got == expected);
  });
  CHECK(ok);
}

TEST_CASE("DiffKeys finds what went and what came", "[index_keys]") {
  IndexInfo index = Spec(R"({"key":{"a":1}})");
  auto diff = [&](std::string_view before, std::string_view after) {
    BsonDocument x = Json(before), y = Json(after);
    KeySet a, b;
    REQUIRE(ExtractKeys(index, x, &a));
    REQUIRE(ExtractKeys(index, y, &b));
    int removed = 0, added = 0;
    DiffKeys(
        a, b, [&](size_t) { ++removed; }, [&](size_t) { ++added; });
    return std::pair(removed, added);
  };
  CHECK(diff(R"({"a":1})", R"({"a":1})") == std::pair(0, 0));
  CHECK(diff(R"({"a":1})", R"({"a":2})") == std::pair(1, 1));
  CHECK(diff(R"({"a":1})", R"({"a":1.0})") == std::pair(1, 1));  // equal keys, other type bits
  CHECK(diff(R"({"a":[1,2,3]})", R"({"a":[2,3,4,5]})") == std::pair(1, 2));
  CHECK(diff(R"({"a":[]})", R"({"a":[1]})") == std::pair(1, 1));
}

TEST_CASE("Types of compound keys come back, default ones cost no bytes", "[index_keys]") {
  IndexInfo index = Spec(R"({"key":{"a":1,"b":-1,"c":1}})");
  KeySet set;
  BsonDocument doc =
      BuildBson([](BsonBuilder& b) { b.Append("a", 1).Append("b", int64_t{2}).Append("c", "x"); });
  REQUIRE(ExtractKeys(index, doc, &set));
  REQUIRE(set.size() == 1);
  auto key = DecodeIndexKey(index, set.values(0), set.type_bits(0));
  REQUIRE(key);
  CHECK(key.value().bytes() == doc.bytes());
  BsonDocument plain = Json(R"({"a":1,"b":2,"c":"x"})");
  REQUIRE(ExtractKeys(index, plain, &set));
  CHECK(set.type_bits(0).empty());
  CHECK(DecodeIndexKey(index, set.values(0), set.type_bits(0)).value().bytes() == plain.bytes());
}

// Keys of megabytes took four times their size in memory, for ever, and as much in the manifest.
TEST_CASE("A key has the beginning of a very long value, and a hash of all of it", "[index_keys]") {
  IndexInfo index;
  index.name = "s_1_t_-1";
  index.fields = {{"s", false, ""}, {"t", true, ""}};
  KeySet keys, others;
  auto doc = [](std::string s, std::string t) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", 1).Append("s", s).Append("t", t); });
  };
  const std::string longest(kMaxKeySize - 3, 'x');  // a class before it, two bytes behind it
  const BsonDocument whole = doc(longest, "t");
  REQUIRE(ExtractNewKeys(index, whole, &keys));
  CHECK_FALSE(HasCutValue(index, keys.values(0)));
  BsonDocument decoded = DecodeIndexKey(index, keys.values(0), keys.type_bits(0)).value();
  CHECK(decoded.view()["s"].String() == longest);

  const std::string large = longest + std::string(5 << 20, 'y');
  REQUIRE(ExtractNewKeys(index, doc(large, "t"), &keys));
  CHECK(keys.values(0).size() < kMaxKeySize + 100);
  CHECK(HasCutValue(index, keys.values(0)));
  decoded = DecodeIndexKey(index, keys.values(0), keys.type_bits(0)).value();
  CHECK(decoded.view()["s"].String() ==
        "(a value of more than " + std::to_string(kMaxKeySize) + " bytes)");
  CHECK(decoded.view()["t"].String() == "t");
  // Equal values have equal keys, and others have not, wherever they differ.
  REQUIRE(ExtractNewKeys(index, doc(large, "t"), &others));
  CHECK(keys.values(0) == others.values(0));
  REQUIRE(ExtractNewKeys(index, doc(large + "z", "t"), &others));
  CHECK(keys.values(0) != others.values(0));
  REQUIRE(ExtractNewKeys(index, doc(large, "u"), &others));
  CHECK(keys.values(0) != others.values(0));
  // What differs where keys have bytes of it is in order.
  REQUIRE(ExtractNewKeys(index, doc("w" + large, "t"), &others));
  CHECK(others.values(0) < keys.values(0));
  // Not one that is cut at 1 MiB ends before its key is split, and a field behind it has room.
  REQUIRE(ExtractNewKeys(index, doc("s", large), &keys));
  size_t first = StoredValueLength(keys.values(0), 0, false);
  CHECK(first == 4);
  CHECK(first + StoredValueLength(keys.values(0), first, true) == keys.values(0).size());
  REQUIRE(ExtractNewKeys(index, doc(large, std::string(3000, 't')), &keys));
  CHECK(keys.values(0).size() == kMaxKeySize + kCutHashSize + 3003);
  first = StoredValueLength(keys.values(0), 0, false);
  CHECK(first == kMaxKeySize + kCutHashSize);
  size_t at = first;
  std::string_view none;
  CHECK(DecodeStoredValue(keys.values(0), &at, true, &none).value().view().String() ==
        std::string(3000, 't'));
  CHECK(at == keys.values(0).size());
  at = 0;
  CHECK_FALSE(DecodeStoredValue(keys.values(0), &at, false, &none));
  REQUIRE(ExtractNewKeys(index, doc(large, large), &keys));
  CHECK(keys.values(0).size() == kMaxKeySize + kLeastCut + 2 * kCutHashSize);
  // Many that are short together are not one that is long.
  BsonDocument many = BuildBson([&](BsonBuilder& b) {
    b.Append("_id", 1);
    auto a = b.OpenArray("s");
    for (int i = 0; i < 200; ++i) a.Append(std::to_string(i) + std::string(10'000, 'x'));
  });
  REQUIRE(ExtractNewKeys(index, many, &keys));
  CHECK(keys.size() == 200);
  CHECK_FALSE(HasCutValue(index, keys.values(0)));
}

TEST_CASE("An extraction that makes no keys ends with its operation", "[index_keys]") {
  // Each element of the array is paired with each of the one at its first position, and none has a
  // value: the square of their number, and a sparse index has no key for it.
  const IndexInfo index = Spec(R"({"key":{"a.0.x.y":1,"a.b":1},"sparse":true})");
  const BsonDocument doc = BuildBson([](BsonBuilder& b) {
    BsonArrayBuilder outer = b.OpenArray("a");
    {
      BsonBuilder first = outer.OpenDocument();
      BsonArrayBuilder inner = first.OpenArray("x");
      for (int i = 0; i < 100; ++i) inner.Append(1);
    }
    for (int i = 0; i < 100; ++i) outer.Append(1);
  });
  SystemClock clock;
  Operation op(clock);
  KeySet keys;
  keys.set_operation(&op);
  CHECK(ExtractKeys(index, doc, &keys));
  CHECK(keys.empty());
  op.kill_code = 11601;
  const Result<void> r = ExtractKeys(index, doc, &keys);
  REQUIRE_FALSE(r);
  CHECK(static_cast<int>(r.error().code) == 11601);
}
