#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace mayfly {

/// Random odd numbers of this process; never revealed. 0 until static initialisation reaches them:
/// no table of static lifetime may be filled before main.
extern const uint64_t kHashSeeds[4];

/// A hash for tables whose keys a client chooses. std::hash has the same seed in every process, and
/// some strings collide under it with any seed: a table of them would be a list. This hash is
/// unpredictable. It differs from process to process, so it must not be stored or sent.
inline uint64_t SeededHash(std::string_view s, uint64_t h = 0) {
  // The 128-bit product, its halves folded together: each bit of `a` and `b` counts.
  auto fold = [](uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  // `p` may be unaligned. The byte order does not matter, since the hash stays in the process.
  auto load = [](const char* p) {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const char* p = s.data();
  size_t n = s.size();
  h ^= kHashSeeds[0];
  for (; n > 16; p += 16, n -= 16) h = fold(load(p) ^ kHashSeeds[1], load(p + 8) ^ h);
  char last[16] = {};
  if (n != 0) std::memcpy(last, p, n);
  h = fold(load(last) ^ kHashSeeds[2], load(last + 8) ^ h);
  return fold(h ^ kHashSeeds[3], s.size() ^ kHashSeeds[1]);
}

/// For unordered containers of strings.
struct SeededStringHash {
  using is_avalanching = void;  // every bit counts: Boost's flat tables need not mix it again
  size_t operator()(std::string_view s) const { return SeededHash(s); }
};
template <class T>
using ClientStringMap = std::unordered_map<std::string, T, SeededStringHash>;
using ClientStringSet = std::unordered_set<std::string, SeededStringHash>;
template <class T>
using ClientViewMap = std::unordered_map<std::string_view, T, SeededStringHash>;
using ClientViewSet = std::unordered_set<std::string_view, SeededStringHash>;

}  // namespace mayfly
