#pragma once
#include <cstdio>
#include <cstdlib>

/// Ends the process, and so the fuzzing, when a promise does not hold.
inline void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}
