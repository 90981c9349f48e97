#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

struct LogEffect;
struct LogUnit;

// clang-format off
/// What the latest transaction number of a session has done: rows of Keyspace::kCatalog. The same
/// grammar is in docs/on-disk-format.md "Sessions".
///
///   "txn/" session             := 01 number:le64 last_write:le64 chunks:le32 entry*
///                               | 02 number:le64 last_write:le64 chunks:le32 ts:le64 term:le64
///                                    entry*
///   "txn/" session chunk:be32  := entry*
///   session := id:16 [uid:32]
///   entry   := kind:u8 first:le32 count:le32 [BSON]     kind 6, alone: a committed transaction
///
/// uid is the digest of the user who owns the session. It is absent without access control, and in
/// rows of versions that did not know users: such rows stay valid.
// clang-format on
inline constexpr std::string_view kSessionRowPrefix = "txn/";
inline constexpr size_t kSessionRowIdBytes = 16, kSessionRowUidBytes = 32;

/// The first row of a session; views into it.
struct SessionRow {
  int64_t number = 0;      ///< of the transaction
  int64_t last_write = 0;  ///< milliseconds since 1970
  uint32_t chunks = 0;
  /// Of its latest record in the log; 0: the row is of a version that did not keep it.
  uint64_t ts = 0, term = 0;
  std::string_view entries;
};

/// Whether it is the key of a session's first row. Keys of chunks are four bytes longer.
bool IsSessionRowKey(std::string_view key);
/// `id`: of the session, with the user's digest or without.
std::string SessionRowKey(std::string_view id);
/// `placed`: with room for its place in the log, which whoever applies it fills in. Else a row that
/// versions read which know none.
std::string EncodeSessionRow(const SessionRow& row, bool placed);
/// Errors: InternalError 1 when it is damaged or of a later version.
Result<SessionRow> DecodeSessionRow(std::string_view value);
/// Whether the effect is a session's first row with room for its place: then `out` is the row with
/// the place and the time of the unit. Every member makes the same of it. Keeps the memory of
/// `out`.
bool PlaceSessionRow(const LogUnit& unit, const LogEffect& effect, std::string* out);

}  // namespace mayfly
