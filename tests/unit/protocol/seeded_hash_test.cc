#include "protocol/seeded_hash.h"

#include <catch2/catch.hpp>
#include <set>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"

using namespace mayfly;

namespace {

// The steps of libstdc++'s hash of bytes, forwards and back: a difference in the highest bit of one
// word is taken out again by one in the next, whatever the seed.
constexpr uint64_t kMul = 0xc6a4a7935bd1e995u;
constexpr uint64_t Inverse() {
  uint64_t x = 1;
  for (int i = 0; i < 6; ++i) x *= 2 - kMul * x;
  return x;
}
uint64_t Forth(uint64_t k) {
  k *= kMul;
  return (k ^ (k >> 47)) * kMul;
}
uint64_t Back(uint64_t k) {
  k *= Inverse();
  return (k ^ (k >> 47)) * Inverse();
}

/// 2^n strings of one length that std::hash gives the same number.
std::vector<std::string> Colliding(int n) {
  std::vector<std::string> out = {""};
  for (int i = 0; i < n; ++i) {
    const uint64_t word[2] = {0x4141414141414141u + static_cast<uint64_t>(i), 0x4242424242424242u};
    const uint64_t other[2] = {Back(Forth(word[0]) ^ uint64_t{1} << 63),
                               Back(Forth(word[1]) ^ uint64_t{1} << 63)};
    std::vector<std::string> next;
    for (const std::string& s : out) {
      next.push_back(s + std::string(reinterpret_cast<const char*>(word), sizeof word));
      next.push_back(s + std::string(reinterpret_cast<const char*>(other), sizeof other));
    }
    out = std::move(next);
  }
  return out;
}

}  // namespace

TEST_CASE("Strings that collide under std::hash do not collide here", "[hash]") {
  const std::vector<std::string> strings = Colliding(10);
  std::set<size_t> theirs, ours, values, low;
  for (const std::string& s : strings) {
    theirs.insert(std::hash<std::string_view>{}(s));
    ours.insert(SeededHash(s));
    low.insert(SeededHash(s) % 65536);
    const BsonDocument d =
        BuildBson([&](BsonBuilder& b) { b.AppendBinary("v", 0, std::string(3, 0) + s); });
    values.insert(HashValue(d.view()["v"]));
  }
  CHECK(std::set<std::string>(strings.begin(), strings.end()).size() == 1024);
  CHECK(theirs.size() == 1);
  CHECK(ours.size() == 1024);
  CHECK(values.size() == 1024);
  CHECK(low.size() > 950);
}

TEST_CASE("The hash looks at every byte, at the length and at what came before", "[hash]") {
  std::set<uint64_t> seen;
  size_t n = 0;
  for (size_t length = 0; length < 70; ++length) {
    std::string s(length, '\0');
    seen.insert(SeededHash(s));
    seen.insert(SeededHash(s, 1));
    n += 2;
    for (char& c : s) {
      c = 'x';
      seen.insert(SeededHash(s));
      c = '\0';
      ++n;
    }
  }
  CHECK(seen.size() == n);
  CHECK(SeededHash("abc") == SeededHash(std::string("abc")));
}
