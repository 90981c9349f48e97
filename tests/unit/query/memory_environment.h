#pragma once
#include <map>
#include <utility>

#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "query/pipeline/stage.h"

namespace mayfly::test {

/// Counts the sources that run: opened or read, and not told to save their state since.
class WatchedSource final : public DocumentSource {
 public:
  WatchedSource(std::unique_ptr<DocumentSource> source, int* running)
      : source_(std::move(source)), running_(*running) {
    ++running_;
  }
  ~WatchedSource() override { SaveState(); }
  Result<StreamState> Next(StreamDocument* out) override {
    running_ += std::exchange(runs_, true) ? 0 : 1;
    return source_->Next(out);
  }
  void SetOperation(Operation* op) override { source_->SetOperation(op); }
  void SaveState() override { running_ -= std::exchange(runs_, false) ? 1 : 0; }
  void AddKept(large_memory::Kept* kept) const override { source_->AddKept(kept); }

 private:
  const std::unique_ptr<DocumentSource> source_;
  int& running_;
  bool runs_ = true;
};

/// Collections in memory, and a find over them by the slow road: match everything, then sort, skip
/// and cut.
class MemoryEnvironment final : public PipelineEnvironment {
 public:
  std::map<std::string, std::vector<BsonDocument>, std::less<>> collections;
  bool has_index = true;
  bool HasIndexOn(std::string_view, std::string_view, std::string_view) override {
    return has_index;
  }
  int opened = 0, abandoned = 0;
  int more_of_stages = 0;  ///< documents of 10 kB that StageDocuments has besides
  int running = 0;         ///< sources (WatchedSource)
  std::vector<std::string> filters;

  void Insert(const std::string& collection, std::string_view json_array) {
    // A mistake in a test's own text ends it.
    const BsonDocument wrapped = ParseJson("{\"a\": " + std::string(json_array) + "}").value();
    for (const BsonElement& e : wrapped.view()["a"].Document())
      collections[collection].emplace_back(e.value.Document());
  }

  Result<std::unique_ptr<DocumentSource>> OpenSource(Operation&, std::string_view,
                                                     std::string_view collection,
                                                     SourceRequest request) override {
    ++opened;
    filters.push_back(ToRelaxedJson(request.filter));
    std::vector<BsonDocument> found;
    EvalContext ctx;
    ctx.variables = request.variables;
    auto it = collections.find(collection);
    if (it != collections.end())
      for (auto& doc : it->second) {
        ctx.root = doc;
        bool matched = true;
        if (request.match) {
          MAYFLY_TRY(matched, request.match->Matches(doc, &ctx));
        }
        if (matched) found.push_back(doc);
      }
    if (!request.sort.view().empty()) {
      MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(request.sort));
      Sorter sorter(std::move(pattern), {});
      for (auto& doc : found) {
        MAYFLY_TRY(sorter.Add(doc));
      }
      MAYFLY_TRY(sorter.Finish());
      found.clear();
      StreamDocument next;
      while (true) {
        MAYFLY_TRY(bool more, sorter.Next(&next));
        if (!more) break;
        found.emplace_back(next.doc);
      }
    }
    found.erase(
        found.begin(),
        found.begin() + std::min<ptrdiff_t>(request.skip, static_cast<ptrdiff_t>(found.size())));
    if (request.limit > 0 && found.size() > static_cast<size_t>(request.limit))
      found.resize(static_cast<size_t>(request.limit));
    return std::unique_ptr<DocumentSource>(std::make_unique<WatchedSource>(
        std::make_unique<VectorSource>(std::move(found)), &running));
  }
  Result<std::vector<BsonDocument>> StageDocuments(Operation&, std::string_view stage,
                                                   std::string_view, std::string_view collection,
                                                   BsonView) override {
    std::vector<BsonDocument> docs;
    docs.push_back(
        BuildBson([&](BsonBuilder& b) { b.Append("stage", stage).Append("coll", collection); }));
    for (int i = 0; i < more_of_stages; ++i)
      docs.push_back(BuildBson([](BsonBuilder& b) { b.Append("x", std::string(10'000, 'x')); }));
    return docs;
  }
  Result<void> BeginOut(Operation&, std::string_view, std::string_view collection,
                        std::optional<BsonView>) override {
    out_ = collection;
    pending_.clear();
    return Ok();
  }
  Result<void> WriteOut(Operation&, std::span<const BsonView> documents) override {
    for (BsonView d : documents) pending_.emplace_back(d);
    return Ok();
  }
  Result<void> CommitOut(Operation&) override {
    collections[out_] = std::move(pending_);
    return Ok();
  }
  void AbandonOut() override { ++abandoned; }
  Result<void> CheckMergeFields(Operation&, std::string_view, std::string_view,
                                std::span<const std::string> on) override {
    if (on.size() == 1 && (on[0] == "u" || on[0] == "_id")) return Ok();
    return LocationError(51183, "Cannot find index to verify that join fields will be unique");
  }
  Result<void> MergeOne(Operation&, std::string_view, std::string_view collection, BsonView query,
                        const MergeDecision& decide) override {
    auto& docs = collections[std::string(collection)];
    for (auto& doc : docs) {
      bool same = true;
      for (const BsonElement& e : query)
        same = same && CompareValues(doc.view().FindPath(e.name), e.value) == 0;
      if (!same) continue;
      MAYFLY_TRY(auto next, decide(doc.view()));
      if (next) doc = std::move(*next);
      return Ok();
    }
    MAYFLY_TRY(auto fresh, decide(std::nullopt));
    if (fresh) docs.push_back(std::move(*fresh));
    return Ok();
  }

 private:
  std::string out_;
  std::vector<BsonDocument> pending_;
};

}  // namespace mayfly::test
