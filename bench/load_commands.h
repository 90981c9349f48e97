#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace mayfly::bench {

// The documents of the workloads, and what is done with them: whole messages for kDb.

/// How documents are inserted.
struct InsertOptions {
  bool ordered = true;
  bool journal = false;                  ///< acknowledged when they are in the log on disk
  std::function<int64_t(int64_t)> b_of;  ///< makes `b` of the `_id`; none: it is the same
};
/// `_id`, two fields for indexes (`a`: a thousand values; `b`), a text and a number `n`: about 200
/// bytes each.
std::string InsertDocuments(std::string_view collection, int64_t first, int64_t count,
                            const InsertOptions& options = {});
/// Indexes on `a` and `b`.
std::string CreateIndexes(std::string_view collection);
/// Of the collection "sessions": a TTL index on `at` and an index on `user`.
std::string CreateSessionIndexes();
std::string Drop(std::string_view collection);
/// `limit` 0: none.
std::string FindEqual(std::string_view collection, std::string_view field, int64_t value,
                      int limit);
/// The 100 from `from` on, in one batch.
std::string FindRange(std::string_view collection, std::string_view field, int64_t from);
/// `n` of one document, by its `_id`.
std::string Increment(std::string_view collection, int64_t id);
std::string Ping();

}  // namespace mayfly::bench
