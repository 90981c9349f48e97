// Keys. Odd first byte: the rest is two BSON documents whose values must sort as keys as they
// compare, and come back from their keys. Even: the rest is a damaged key, which must be refused or
// give a value that makes sense.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "protocol/bson_validate.h"
#include "storage/keys/key_encoding.h"

namespace {

using namespace mayfly;

std::string Key(BsonValue v, bool descending) {
  std::string out;
  EncodeKeyValue(v, descending, out);
  return out;
}

int Sign(int x) { return x < 0 ? -1 : (x > 0 ? 1 : 0); }

/// What a key does not keep: the names of array elements. The values are compared instead of the
/// bytes.
void RequireRoundTrip(BsonValue v, bool descending) {
  std::string key = Key(v, descending), bits;
  Require(EncodedValueLength(key, descending) == key.size(), "a key has its length");
  EncodeTypeBits(v, bits);
  TrimTypeBits(bits);
  std::string_view k = key, t = bits;
  auto back = DecodeKeyValue(&k, descending, &t);
  Require(back.has_value() && k.empty() && t.empty(), "a key is read back whole");
  BsonValue got = back.value().view();
  Require(got.type() == v.type() && CompareValues(got, v) == 0, "a key gives its value back");
  if (v.IsNumber()) Require(got.BinaryEquals(v), "a number comes back bit by bit");
  k = key;
  t = {};
  auto plain = DecodeKeyValue(&k, descending, &t);
  Require(plain.has_value() && CompareValues(plain.value().view(), v) == 0,
          "an equal value without type bits");
}

void Values(std::string_view input) {
  auto n = ValidateBsonPrefix(input);
  if (!n) return;
  std::string first(input.substr(0, n.value())), second(input.substr(n.value()));
  for (const BsonElement& e : BsonView(first)) {
    RequireRoundTrip(e.value, false);
    RequireRoundTrip(e.value, true);
  }
  if (!ValidateBson(second)) return;
  for (const BsonElement& a : BsonView(first)) {
    std::string ka = Key(a.value, false), da = Key(a.value, true);
    for (const BsonElement& b : BsonView(second)) {
      std::string kb = Key(b.value, false);
      int want = Sign(CompareValues(a.value, b.value));
      Require(Sign(ka.compare(kb)) == want, "keys sort as values compare");
      Require(Sign(da.compare(Key(b.value, true))) == -want, "descending keys sort the other way");
      if (want == 0)
        Require(HashValue(a.value) == HashValue(b.value), "equal values hash equal");
      else
        Require(!ka.starts_with(kb) && !kb.starts_with(ka), "no key begins another");
    }
  }
}

void Damaged(std::string_view input, bool descending) {
  size_t split = input.empty() ? 0 : static_cast<uint8_t>(input[0]) % (input.size() + 1);
  std::string key(input.substr(split)), bits(input.substr(0, split));
  std::string_view k = key, t = bits;
  auto v = DecodeKeyValue(&k, descending, &t);
  size_t length = EncodedValueLength(key, descending);
  if (!v) return;
  Require(length == key.size() - k.size(), "length and reader agree");
  BsonDocument doc = BuildBson([&](BsonBuilder& b) { b.Append("v", v.value().view()); });
  // Sound in structure; what else BSON asks for (the inner length of an old binary) a damaged key
  // may well break.
  auto valid = ValidateBson(doc.bytes(), false);
  Require(valid || valid.error().code == ErrorCode::kOverflow ||
              valid.error().message.find("subtype 2") != std::string::npos,
          "a value that was read is valid BSON");
  std::string again = Key(v.value().view(), descending);
  std::string_view a = again, none;
  auto twice = DecodeKeyValue(&a, descending, &none);
  Require(twice.has_value() && CompareValues(twice.value().view(), v.value().view()) == 0,
          "it can be written again");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] & 1)
    Values(input);
  else
    Damaged(input, data[0] & 2);
  return 0;
}
