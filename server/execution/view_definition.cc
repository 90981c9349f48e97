#include "server/execution/view_definition.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "protocol/system_names.h"
#include "query/pipeline/pipeline.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

Result<std::unique_ptr<Pipeline>> ParseViewPipeline(std::string_view db, std::string_view on,
                                                    BsonView stages) {
  PipelineOptions options;
  options.db = db;
  options.collection = on;
  options.allow_writes = false;
  return Pipeline::Parse(stages, options);
}

/// Collects the namespaces that a view reads, including those read through other views.
struct Walk {
  Catalog& catalog;
  std::string_view start;  ///< the view that is defined
  std::set<std::string> done = {};
  int deepest = 0;  ///< the longest chain of views below `start`

  Result<void> Visit(const std::string& ns, int depth, const std::string& way) {
    if (ns == start)
      return Error{ErrorCode::kGraphContainsCycle, "View cycle detected: " + way + " => " + ns};
    if (depth >= kMaxViewDepth)
      return Error{ErrorCode::kViewDepthLimitExceeded,
                   "View depth too deep or view cycle detected; maximum depth is " +
                       std::to_string(kMaxViewDepth)};
    const NamespaceParts parts = SplitNamespace(ns);
    if (!parts.whole() || !done.insert(ns).second) return Ok();
    const CollectionInfoPtr coll = catalog.Find(parts.db, parts.collection);
    if (!coll || !coll->is_view()) return Ok();
    deepest = std::max(deepest, depth + 1);
    MAYFLY_TRY(Visit(JoinNamespace(coll->db, coll->view_on), depth + 1, way + " => " + ns));
    auto pipeline = ParseViewPipeline(coll->db, coll->view_on, coll->view_pipeline);
    if (!pipeline) return Ok();  // made by another version
    for (const std::string& read : pipeline.value()->InvolvedNamespaces()) {
      MAYFLY_TRY(Visit(read, depth + 1, way + " => " + ns));
    }
    return Ok();
  }
};

/// The views that read one of `names`, including those that read it in their pipelines.
std::set<std::string> ReadersOf(const std::vector<CollectionInfoPtr>& views,
                                const std::set<std::string>& names) {
  std::set<std::string> readers;
  for (const CollectionInfoPtr& view : views) {
    if (names.contains(JoinNamespace(view->db, view->view_on))) {
      readers.insert(view->ns);
      continue;
    }
    // Parsing is only worth it if one of the names appears somewhere in the definition.
    const std::string_view text = view->view_pipeline.view().bytes();
    const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& ns) {
      return text.find(SplitNamespace(ns).collection) != std::string_view::npos;
    });
    if (!named) continue;
    auto pipeline = ParseViewPipeline(view->db, view->view_on, view->view_pipeline);
    if (!pipeline) continue;  // made by another version
    for (const std::string& read : pipeline.value()->InvolvedNamespaces())
      if (names.contains(read)) readers.insert(view->ns);
  }
  return readers;
}

/// A view may be defined on a namespace that does not exist yet. Checks whether a view above
/// `start` becomes too deep when there are `below` views under `start`.
Result<void> CheckReaders(Catalog& catalog, const std::string& start, int below) {
  std::vector<CollectionInfoPtr> views = catalog.ListAll();
  std::erase_if(views, [](const CollectionInfoPtr& c) { return !c->is_view(); });
  std::set<std::string> level{start};
  for (int depth = below + 1; !views.empty() && !level.empty(); ++depth) {
    if (depth > kMaxViewDepth)
      return Error{ErrorCode::kViewDepthLimitExceeded,
                   "View depth too deep or view cycle detected: " + *level.begin() +
                       " would be read through more than " + std::to_string(kMaxViewDepth) +
                       " views"};
    level = ReadersOf(views, level);
  }
  return Ok();
}

}  // namespace

Result<void> CheckViewDefinition(Catalog& catalog, std::string_view db, std::string_view name,
                                 std::string_view on, BsonView stages) {
  int at = 0;
  for (const BsonElement& e : stages) {
    const std::string_view stage =
        e.value.IsDocument() ? e.value.Document().First().name : std::string_view();
    ++at;
    if (stage == "$out" || stage == "$merge")
      return Error{ErrorCode::kOptionNotSupportedOnView,
                   "The aggregation stage " + std::string(stage) + " in location " +
                       std::to_string(at) +
                       " of the pipeline cannot be used in the view definition of " +
                       JoinNamespace(db, name) + " because it writes to disk"};
  }
  MAYFLY_TRY(ValidateNamespace(db, on));
  if (on.starts_with(kBucketsPrefix))
    return Error{ErrorCode::kInvalidNamespace,
                 "a view cannot be on " + JoinNamespace(db, on) +
                     ", which holds buckets: make it on the time-series collection"};
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline, ParseViewPipeline(db, on, stages));
  const std::string start = JoinNamespace(db, name);
  Walk walk{catalog, start};
  MAYFLY_TRY(walk.Visit(JoinNamespace(db, on), 0, start));
  for (const std::string& read : pipeline->InvolvedNamespaces()) {
    MAYFLY_TRY(walk.Visit(read, 0, start));
  }
  return CheckReaders(catalog, start, walk.deepest);
}

}  // namespace mayfly
