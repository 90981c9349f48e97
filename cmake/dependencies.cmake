# Every outside library, as an imported target named here and nowhere else. All are Debian 12 packages.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(RocksDB REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)

pkg_check_modules(BSON REQUIRED IMPORTED_TARGET libbson-1.0)
pkg_check_modules(MONGOC REQUIRED IMPORTED_TARGET libmongoc-1.0)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)

find_library(SNAPPY_LIBRARY snappy REQUIRED)
add_library(mayfly_dep_snappy INTERFACE)
target_link_libraries(mayfly_dep_snappy INTERFACE ${SNAPPY_LIBRARY})

# xxHash: its header holds all of it.
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(mayfly_dep_xxhash INTERFACE)
target_include_directories(mayfly_dep_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})

# Time zones, by the system's zone files.
find_library(CCTZ_LIBRARY cctz REQUIRED)
add_library(mayfly_dep_time_zones INTERFACE)
target_link_libraries(mayfly_dep_time_zones INTERFACE ${CCTZ_LIBRARY})

# IEEE 754-2008 decimal arithmetic (BID encoding, the one BSON stores).
find_library(BID_LIBRARY bidgcc000 REQUIRED)
add_library(mayfly_dep_decimal INTERFACE)
target_link_libraries(mayfly_dep_decimal INTERFACE ${BID_LIBRARY})
