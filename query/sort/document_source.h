#pragma once
#include <cstdint>
#include <optional>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "query/expression/expression.h"

namespace mayfly {

/// The result of a call of DocumentSource::Next.
enum class StreamState : uint8_t {
  kAdvanced,  ///< `*out` holds the next document
  kEof,       ///< there is none, and there will be none
  kPaused,    ///< nothing now; ask again (a tailable source)
};

/// One document on its way through a plan or a pipeline. Both pointers are valid until the next
/// call of the Next() that filled them in; nothing is owned.
struct StreamDocument {
  BsonView doc;
  const DocumentMetadata* metadata = nullptr;  ///< null: it has none
};

/// Something that documents are pulled out of: the executor of a plan, or a stage. Used by one
/// thread at a time (by one after another between getMores). Destroying it gives up what it holds.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  /// `*out` is filled for kAdvanced only. Errors: what interrupts the operation, failing
  /// expressions, limits of memory.
  virtual Result<StreamState> Next(StreamDocument* out) = 0;
  /// For callers that only count: the number of remaining documents, all at once; then none are
  /// left. Nothing: no faster way than Next().
  virtual Result<std::optional<int64_t>> CountRest() { return std::optional<int64_t>(); }
  /// The operation that runs from now on: a getMore brings its own. Before the first Next() and
  /// whenever it changes.
  virtual void SetOperation(Operation* op) = 0;
  /// Called when the command's batch is full. Releases pinned resources and remembers the position,
  /// from which Next() continues. The document last returned becomes invalid.
  virtual void SaveState() {}
  /// Adds what it keeps in memory between two batches.
  virtual void AddKept(large_memory::Kept* kept) const { (void)kept; }
  /// Fields of `executionStats` / `queryPlanner` for explain, appended to `out`.
  virtual void Explain(class BsonBuilder& out, int verbosity) const {
    (void)out;
    (void)verbosity;
  }
};

}  // namespace mayfly
