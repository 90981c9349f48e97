#pragma once
#include <cstring>
#include <string>
#include <string_view>

namespace mayfly {

/// Appends the bytes of a number (little-endian, as every machine we run on).
template <class T>
void AppendNumber(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
/// Takes a number off the front. False, and nothing taken, when too few bytes are left.
template <class T>
bool TakeNumber(std::string_view* in, T* v) {
  if (in->size() < sizeof *v) return false;
  std::memcpy(v, in->data(), sizeof *v);
  in->remove_prefix(sizeof *v);
  return true;
}

}  // namespace mayfly
