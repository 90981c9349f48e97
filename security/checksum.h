#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace mayfly {

/// SHA-256 (FIPS 180-4) of bytes that come piece by piece. Movable; one thread. Throws
/// std::bad_alloc when OpenSSL fails, which for this function means that there is no memory.
class Checksum {
 public:
  static constexpr size_t kBytes = 32;
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  /// The next piece; empty ones change nothing.
  void Add(std::string_view bytes);
  /// The checksum of all added bytes: 32 bytes. Then starts again.
  std::string Take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mayfly
