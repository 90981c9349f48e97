#include "storage/kv/key_streams.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

using namespace mayfly;

namespace {

std::string NumberKey(uint32_t n) {
  std::string k;
  for (int shift = 24; shift >= 0; shift -= 8) k.push_back(static_cast<char>(n >> shift));
  return k;
}

}  // namespace

TEST_CASE("Keys that grow are in order after a few, random ones hardly ever", "[kv]") {
  KeyStreams s;
  for (uint32_t i = 0; i < 6; ++i) CHECK_FALSE(s.InOrder(1, NumberKey(i)));
  for (uint32_t i = 6; i < 100; ++i) CHECK(s.InOrder(1, NumberKey(i)));
  // One that comes late does not end it at once.
  s.InOrder(1, NumberKey(90));
  CHECK(s.InOrder(1, NumberKey(101)));
  std::mt19937 random(7);
  int in_order = 0;
  for (int i = 0; i < 10'000; ++i) in_order += s.InOrder(2, NumberKey(random()));
  CHECK(in_order < 300);
  // Where they fall they are not, and another stream's keys say nothing of this one's.
  for (uint32_t i = 100; i > 0; --i) CHECK_FALSE(s.InOrder(3, NumberKey(i)));
  CHECK(s.InOrder(1, NumberKey(102)));
}

TEST_CASE("The same key again and again is in order; long keys by their beginning", "[kv]") {
  KeyStreams s;
  bool last = false;
  for (int i = 0; i < 7; ++i) last = s.InOrder(1, "counters/1");
  CHECK(last);
  const std::string begin(60, 'x');
  for (int i = 0; i < 7; ++i) last = s.InOrder(2, begin + std::to_string(9 - i));
  CHECK(last);
  // Streams that share a place push each other out.
  for (int i = 0; i < 50; ++i) {
    CHECK_FALSE(s.InOrder(5, "a"));
    CHECK_FALSE(s.InOrder(5 + 256, "a"));
  }
}
