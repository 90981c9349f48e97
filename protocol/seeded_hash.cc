#include "protocol/seeded_hash.h"

#include <random>

namespace mayfly {
namespace {

uint64_t Odd() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace

const uint64_t kHashSeeds[4] = {Odd(), Odd(), Odd(), Odd()};

}  // namespace mayfly
