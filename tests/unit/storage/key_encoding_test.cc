#include "storage/keys/key_encoding.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "storage/keys/key_classes.h"

using namespace mayfly;
using namespace std::literals;

namespace {

/// Random values that are often equal or close to each other, of every type, with nesting.
class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  Value Next(int depth = 0) {
    switch (Pick(depth < 3 ? 20 : 16)) {
      case 0:
        return Value::Null();
      case 1:
        return Value::Int32(static_cast<int32_t>(Number()));
      case 2:
        return Value::Int64(Number());
      case 3:
        return Value::Double(RandomDouble());
      case 4:
        return Value::Decimal(RandomDecimal());
      case 5:
        return Value::String(Text());
      case 6:
        return Raw(
            [&](BsonBuilder& b) { b.AppendBinary("", static_cast<uint8_t>(Pick(3)), Text()); });
      case 7:
        return Value::ObjectId(std::string(11, 'o') + static_cast<char>(Pick(4)));
      case 8:
        return Value::Bool(Pick(2));
      case 9:
        return Value::Date({Number()});
      case 10:
        return Value::Timestamp(static_cast<uint64_t>(Number()));
      case 11:
        return Raw([&](BsonBuilder& b) { b.AppendRegex("", CText(), Pick(2) ? "i" : ""); });
      case 12:
        return Raw([&](BsonBuilder& b) { b.AppendStringLike(BsonType::kCode, "", Text()); });
      case 13:
        return Raw([&](BsonBuilder& b) { b.AppendStringLike(BsonType::kSymbol, "", Text()); });
      case 14:
        return Value::Owned(Pick(2) ? BsonType::kMinKey : BsonType::kMaxKey, "");
      case 15:
        return Value::Owned(BsonType::kUndefined, "");
      case 16:
      case 17: {
        std::string bytes;
        BsonBuilder b(bytes);
        for (int i = Pick(3); i > 0; --i) b.Append(CText(), Next(depth + 1).view());
        b.Done();
        return Value::Document(bytes);
      }
      default: {
        std::string bytes;
        BsonArrayBuilder b(bytes);
        for (int i = Pick(3); i > 0; --i) b.Append(Next(depth + 1).view());
        b.Done();
        return Value::Array(bytes);
      }
    }
  }
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

 private:
  template <class F>
  Value Raw(F fill) {
    return Value::Copy(BuildBson(fill).view().First().value);
  }
  int64_t Number() {
    static constexpr int64_t kEdges[] = {0,
                                         1,
                                         -1,
                                         2,
                                         INT32_MAX,
                                         INT32_MIN,
                                         INT64_MAX,
                                         INT64_MIN,
                                         INT64_MAX - 1,
                                         9007199254740992,
                                         9007199254740993,
                                         -9007199254740993,
                                         9007199254740994,
                                         10,
                                         100,
                                         127,
                                         128,
                                         -128,
                                         -129,
                                         32767,
                                         32768,
                                         INT64_MIN + 1,
                                         4611686018427387904,
                                         4611686018427387903,
                                         36028797018963967,
                                         36028797018963968};
    return Pick(3) ? kEdges[Pick(std::size(kEdges))]
                   : static_cast<int64_t>(static_cast<uint64_t>(random_()) << 32 | random_());
  }
  double RandomDouble() {
    static const double kEdges[] = {0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.5,
                                    NAN,
                                    INFINITY,
                                    -INFINITY,
                                    9007199254740992.0,
                                    9223372036854775808.0,
                                    -9223372036854775808.0,
                                    5e-324,
                                    1.7976931348623157e308,
                                    0.1,
                                    -0.1,
                                    1.0000000000000002,
                                    1.5,
                                    -1.5,
                                    127.5,
                                    128.5,
                                    4503599627370495.5,
                                    0.9999999999999999,
                                    9223372036854774784.0,
                                    9223372036854777856.0,
                                    -5e-324,
                                    2.2250738585072014e-308};
    return Pick(4) ? kEdges[Pick(std::size(kEdges))] : static_cast<double>(Number()) / 3;
  }
  Decimal128Bits RandomDecimal() {
    static const char* kEdges[] = {"0",
                                   "-0",
                                   "0E+3",
                                   "1",
                                   "1.0",
                                   "1.00",
                                   "0.1",
                                   "-0.1",
                                   "0.1000000000000000055511151231257827",
                                   "NaN",
                                   "Infinity",
                                   "-Infinity",
                                   "9007199254740993",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "1E+400",
                                   "-1E+400",
                                   "1E-400",
                                   "1E-6176",
                                   "9.999E+6144",
                                   "0.5",
                                   "100",
                                   "1E+2",
                                   "1.5",
                                   "-1.5",
                                   "127.5",
                                   "4503599627370495.50",
                                   "9007199254740993.5",
                                   "-9007199254740993.5",
                                   "0.9999999999999999999999999999999999",
                                   "9223372036854775807.5",
                                   "-9223372036854775808.5",
                                   "-9223372036854775808",
                                   "1.000000000000000000000000000000001",
                                   "9999999999999999999999999999999999",
                                   "9.999999999999999999999999999999999E-6143",
                                   "1E+19",
                                   "922337203685477580E+1",
                                   "1E+34",
                                   "-1E+18",
                                   "0.1000000000000000055511151231257828",
                                   "-0.1000000000000000055511151231257827",
                                   "5E-324",
                                   "1.797693134862315708145274237317043E+308",
                                   "1.797693134862315708145274237317044E+308"};
    if (Pick(4)) return decimal128::Parse(kEdges[Pick(std::size(kEdges))]).value();
    return decimal128::Multiply(decimal128::FromInt64(Number()),
                                decimal128::Parse(Pick(2) ? "1E-5" : "1E+20").value());
  }
  std::string Text() {
    static const char* kParts[] = {"", "a", "b", "ab", "é", "zz"};
    std::string s = kParts[Pick(6)];
    if (Pick(3) == 0) s += std::string(1, '\0') + kParts[Pick(6)];
    return s;
  }
  std::string CText() {
    static const char* kParts[] = {"", "a", "b", "ab", "é"};
    return kParts[Pick(5)];
  }
  std::mt19937 random_;
};

int Sign(int x) { return x < 0 ? -1 : (x > 0 ? 1 : 0); }
std::string Key(const Value& v, bool descending) {
  std::string out;
  EncodeKeyValue(v.view(), descending, out);
  return out;
}
std::string Show(const Value& v) {
  return std::string(BsonTypeName(v.type())) + " " + ToRelaxedJson(v.view());
}

}  // namespace

TEST_CASE("Byte order of encoded values is comparison order", "[key_encoding]") {
  const uint32_t seed = GENERATE(range(1u, 9u));
  Generator g(seed);
  for (int i = 0; i < 20000; ++i) {
    Value a = g.Next(), b = g.Next();
    std::string ka = Key(a, false), kb = Key(b, false);
    int want = Sign(CompareValues(a.view(), b.view()));
    if (want != Sign(ka.compare(kb)) || want != -Sign(Key(a, true).compare(Key(b, true)))) {
      INFO("seed " << seed << ": " << Show(a) << " against " << Show(b));
      CHECK(want == Sign(ka.compare(kb)));
      CHECK(want == -Sign(Key(a, true).compare(Key(b, true))));
    }
    if (want != 0) {
      // Prefix-free, so that a further value can follow without changing the order.
      if (ka.starts_with(kb) || kb.starts_with(ka))
        FAIL("one key begins with the other: " << Show(a) << " and " << Show(b));
    } else {
      REQUIRE(HashValue(a.view()) == HashValue(b.view()));
    }
  }
}

TEST_CASE("Encoded values decode to what they were, type included", "[key_encoding]") {
  Generator g(77);
  for (int i = 0; i < 20000; ++i) {
    bool descending = g.Pick(2);
    Value a = g.Next(), b = g.Next();
    std::string key = Key(a, descending) + Key(b, !descending), bits;
    EncodeTypeBits(a.view(), bits);
    EncodeTypeBits(b.view(), bits);
    TrimTypeBits(bits);
    CHECK(EncodedValueLength(key, descending) == Key(a, descending).size());
    std::string_view k = key, t = bits;
    Value da = DecodeKeyValue(&k, descending, &t).value();
    Value db = DecodeKeyValue(&k, !descending, &t).value();
    INFO(Show(a) << " and " << Show(b));
    REQUIRE(da.view().BinaryEquals(a.view()));
    REQUIRE(db.view().BinaryEquals(b.view()));
    REQUIRE(k.empty());
    std::string_view none, alone = key;
    REQUIRE(CompareValues(DecodeKeyValue(&alone, descending, &none).value().view(), a.view()) == 0);
  }
}

TEST_CASE("Damaged keys are refused, never read past", "[key_encoding]") {
  Generator g(5);
  for (int i = 0; i < 20000; ++i) {
    std::string key = Key(g.Next(), false);
    key.resize(static_cast<size_t>(g.Pick(static_cast<int>(key.size()))));
    if (!key.empty())
      key[static_cast<size_t>(g.Pick(static_cast<int>(key.size())))] =
          static_cast<char>(g.Pick(256));
    std::string exact(key.data(), key.size());  // its own allocation, for the address sanitizer
    std::string_view k = exact, bits;
    auto v = DecodeKeyValue(&k, false, &bits);
    size_t n = EncodedValueLength(exact, false);
    CHECK((v.has_value() ? n > 0 && n <= exact.size() : n == 0));
  }
}

TEST_CASE("A length in a key that is longer than the key is refused", "[key_encoding]") {
  // 7F FF FF FF and one more, for the NUL of a DBPointer's namespace, overflowed.
  for (uint8_t kind : {key::kClassDbPointer, key::kClassBinary})
    for (std::string_view length : {"\x7f\xff\xff\xff"sv, "\xff\xff\xff\xff"sv, "\0\0\0\x09"sv}) {
      std::string damaged = static_cast<char>(kind) + std::string(length) + "12345678";
      std::string_view k = damaged, bits;
      CHECK_FALSE(DecodeKeyValue(&k, false, &bits).has_value());
      CHECK(EncodedValueLength(damaged, false) == 0);
    }
}

TEST_CASE("Common values have short keys", "[key_encoding]") {
  struct Case {
    Value value;
    size_t size;
  };
  const Case cases[] = {{Value::Null(), 1},
                        {Value::Int32(0), 1},
                        {Value::Int32(5), 2},
                        {Value::Double(-5), 2},
                        {Value::Int32(1000), 3},
                        {Value::Int32(INT32_MIN), 6},
                        {Value::Int64(1767225600000), 7},
                        {Value::Int64(INT64_MAX), 9},
                        {Value::Double(0.5), 11},
                        {Value::Bool(true), 2},
                        {Value::Date({0}), 9},
                        {Value::ObjectId("123456789012"), 13},
                        {Value::String("abc"), 6}};
  for (const Case& c : cases) {
    INFO(Show(c.value));
    CHECK(Key(c.value, false).size() == c.size);
    CHECK(Key(c.value, true).size() == c.size);
  }
}

TEST_CASE("Unusual NaNs come back bit by bit", "[key_encoding]") {
  const uint64_t raw[] = {0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001,
                          0x7FF0000000000001};
  for (uint64_t bits_of : raw) {
    Value v = Value::Double(std::bit_cast<double>(bits_of));
    std::string key = Key(v, false), bits;
    EncodeTypeBits(v.view(), bits);
    TrimTypeBits(bits);
    std::string_view k = key, t = bits;
    CHECK(DecodeKeyValue(&k, false, &t).value().view().BinaryEquals(v.view()));
  }
}

TEST_CASE("Damaged type bits are refused", "[key_encoding]") {
  const Value values[] = {Value::Int32(5),    Value::Double(1.5),
                          Value::Double(NAN), Value::Int64(INT64_MIN),
                          Value::Double(0),   Value::Decimal(decimal128::Parse("0.1").value())};
  for (const Value& v : values)
    for (int first = 0; first < 256; ++first)
      for (size_t more : {0, 7, 9, 16, 17}) {
        std::string key = Key(v, false),
                    bits = std::string(1, static_cast<char>(first)) + std::string(more, '\x01');
        std::string_view k = key, t = bits;
        auto r = DecodeKeyValue(&k, false, &t);
        if (first > 6) CHECK_FALSE(r.has_value());
        if (r.has_value() && first != 3 && first != 6)
          CHECK(CompareValues(r.value().view(), v.view()) == 0);
      }
}

TEST_CASE("A type class lies between its bounds", "[key_encoding]") {
  Generator g(9);
  for (int i = 0; i < 5000; ++i) {
    Value v = g.Next();
    std::string low, high;
    EncodeTypeClassBegin(v.type(), low);
    EncodeTypeClassEnd(v.type(), high);
    std::string key = Key(v, false);
    INFO(Show(v));
    CHECK(key >= low);
    CHECK(key < high);
  }
}

TEST_CASE("An index entry's group ends with its first value", "[key_encoding]") {
  Generator g(12);
  for (int i = 0; i < 20000; ++i) {
    const Value v = g.Next();
    const bool descending = g.Pick(2) != 0;
    const std::string front = "\0\0\1\7"s + Key(v, descending);
    std::string entry = front;
    for (int n = g.Pick(3); n >= 0; --n) EncodeKeyValue(g.Next().view(), g.Pick(2) != 0, entry);
    INFO(Show(v) << (descending ? " descending" : ""));
    const bool nests = v.type() == BsonType::kDocument || v.type() == BsonType::kArray ||
                       v.type() == BsonType::kCodeWithScope;
    CHECK(IndexGroupSize(entry) == (nests ? 0 : front.size()));
    CHECK(IndexGroupSize(front) == (nests ? 0 : front.size()));
    // Any bytes may be asked about, and a part of a value is none.
    const auto part = static_cast<size_t>(g.Pick(static_cast<int>(front.size())));
    CHECK(IndexGroupSize(std::string_view(front).substr(0, part)) == 0);
    for (int n = 0; n < 3; ++n)
      entry[static_cast<size_t>(g.Pick(static_cast<int>(entry.size())))] =
          static_cast<char>(g.Pick(256));
    CHECK(IndexGroupSize(entry) <= entry.size());
  }
}
