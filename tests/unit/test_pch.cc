// Compiled with the precompiled header that every test program reuses: without a source that uses
// it, CMake makes no rule for it.
