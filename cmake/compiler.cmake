# Compiler and linker settings that every target shares.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros: what ccache needs to be told before it will cache precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -fno-strict-aliasing)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -fpch-preprocess: lets ccache see through precompiled headers. The two warnings misfire in g++ 12 on
  # std::string and std::optional inlined at -O2.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess> -Wno-maybe-uninitialized
                      -Wno-restrict -Wno-stringop-overread -Wno-stringop-overflow -Wno-array-bounds)
else()
  # Without the time of its making in it, a precompiled header can be cached.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>" -Wno-unused-private-field)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
# For sanitizers: the least that gives line numbers in reports.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -gline-tables-only")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")
endif()

# Profile-guided optimisation, for GCC, of what requests run through (mayfly_library(HOT)): "train" counts what runs,
# into build/profile; "use" reads it, and optimises while linking. scripts/lib/optimised.sh does both. Everything else
# is compiled as in a release build, so that ccache has it already.
set(MAYFLY_PROFILE "" CACHE STRING "train, use, or nothing")
set(MAYFLY_HOT_OPTIONS "")
if(MAYFLY_PROFILE)
  # An object finds its profile by its path below the build folder.
  set(folder ${CMAKE_SOURCE_DIR}/build/profile)
  if(MAYFLY_PROFILE STREQUAL "train")
    # Threads count the same counters.
    set(MAYFLY_HOT_OPTIONS -fprofile-generate=${folder} -fprofile-update=atomic)
    add_link_options(-fprofile-generate)
  else()
    # -fprofile-partial-training: functions that the training did not run are compiled as if there were no profile, and
    # not for size. A function that was changed after the training goes without its profile.
    set(MAYFLY_HOT_OPTIONS -fprofile-use=${folder} -fprofile-partial-training -Wno-missing-profile
                           -Wno-coverage-mismatch -flto=auto -fno-fat-lto-objects)
    add_link_options(-flto=auto)
    set(CMAKE_AR ${CMAKE_CXX_COMPILER_AR})
    set(CMAKE_RANLIB ${CMAKE_CXX_COMPILER_RANLIB})
  endif()
  list(APPEND MAYFLY_HOT_OPTIONS -fprofile-prefix-path=${CMAKE_BINARY_DIR})
endif()

# protocol/bson_check.h: what the server makes is checked as if it came from outside.
if(MAYFLY_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(MAYFLY_CHECK_BSON)
endif()
if(MAYFLY_SANITIZE)
  add_compile_options(-fsanitize=${MAYFLY_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MAYFLY_SANITIZE})
  if(MAYFLY_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=vptr)
  endif()
endif()
# The fuzzers' coverage counters are in every object, so that the unit tests and the fuzzers share them.
if(MAYFLY_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
