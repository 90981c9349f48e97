# raft-rs as a static library: cargo builds it from Cargo.lock, once for all presets (it has no sanitizers in it).
find_program(CARGO cargo REQUIRED)
set(RAFT_DIR ${CMAKE_CURRENT_LIST_DIR}/raft)
set(RAFT_TARGET_DIR ${CMAKE_SOURCE_DIR}/build/raft)
set(RAFT_LIBRARY ${RAFT_TARGET_DIR}/release/libmayfly_raft.a)
add_custom_command(
  OUTPUT ${RAFT_LIBRARY}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${RAFT_TARGET_DIR} ${CARGO} build --release --locked --quiet
          --manifest-path ${RAFT_DIR}/Cargo.toml
  DEPENDS ${RAFT_DIR}/Cargo.toml ${RAFT_DIR}/Cargo.lock ${RAFT_DIR}/src/c.rs ${RAFT_DIR}/src/lib.rs
          ${RAFT_DIR}/src/store.rs
  COMMENT "Building raft-rs with cargo"
  VERBATIM)
add_custom_target(mayfly_raft_build DEPENDS ${RAFT_LIBRARY})
add_library(mayfly_raft STATIC IMPORTED GLOBAL)
set_target_properties(mayfly_raft PROPERTIES IMPORTED_LOCATION ${RAFT_LIBRARY})
target_link_libraries(mayfly_raft INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
