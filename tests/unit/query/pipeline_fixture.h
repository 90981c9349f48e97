#pragma once
#include <catch2/catch.hpp>
#include <map>

#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "query/pipeline/stage.h"
#include "storage/clock.h"

namespace mayfly::test {

inline BsonDocument Json(std::string_view text) {
  Result<BsonDocument> doc = ParseJson(text);
  if (!doc) FAIL(std::string(text) + ": " + doc.error().message);
  return doc.value();
}

/// Without blanks: JSON is the same with more or fewer of them.
inline std::string Squeeze(std::string text) {
  std::erase(text, ' ');
  return text;
}

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
  std::vector<std::string> filters;

  void Insert(const std::string& collection, std::string_view json_array) {
    BsonDocument wrapped = Json("{\"a\": " + std::string(json_array) + "}");
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
    return std::unique_ptr<DocumentSource>(std::make_unique<VectorSource>(std::move(found)));
  }
  Result<std::vector<BsonDocument>> StageDocuments(Operation&, std::string_view stage,
                                                   std::string_view, std::string_view collection,
                                                   BsonView) override {
    std::vector<BsonDocument> docs;
    docs.push_back(
        BuildBson([&](BsonBuilder& b) { b.Append("stage", stage).Append("coll", collection); }));
    return docs;
  }
  Result<void> BeginOut(Operation&, std::string_view, std::string_view collection) override {
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
    if (on.size() == 1 && on[0] == "u") return Ok();
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

struct Runner {
  MemoryEnvironment env;
  SystemClock clock;
  Operation op{clock};
  PipelineOptions options{.db = "test", .collection = "c"};
  std::string request;    ///< what the source was asked for: "filter sort skip limit fields"
  std::string remaining;  ///< the stages left behind the source

  Result<std::unique_ptr<Pipeline>> Open(std::string_view stages) {
    BsonDocument wrapped = Json("{\"a\": " + std::string(stages) + "}");
    MAYFLY_TRY(auto pipeline, Pipeline::Parse(wrapped.view()["a"].Document(), options));
    if (pipeline->NeedsSource()) {
      SourceRequest r = pipeline->TakeSource();
      request = ToRelaxedJson(r.filter) + " " + ToRelaxedJson(r.sort) + " " +
                std::to_string(r.skip) + " " + std::to_string(r.limit) + " ";
      if (!r.fields)
        request += "*";
      else
        for (auto& f : *r.fields) request += f + ",";
      MAYFLY_TRY(auto source, env.OpenSource(op, options.db, options.collection, std::move(r)));
      pipeline->SetSource(std::move(source));
    }
    std::string bytes;
    BsonArrayBuilder out(bytes);
    pipeline->Serialize(out);
    out.Done();
    remaining = "";
    for (const BsonElement& e : BsonView(bytes.data()))
      remaining += std::string(e.value.Document().First().name) + " ";
    pipeline->Attach(&op, &env);
    return pipeline;
  }
  /// The documents that come out, in relaxed extended JSON and one a line; or "error <code>".
  std::string Run(std::string_view stages) {
    auto opened = Open(stages);
    if (!opened) return "error " + std::to_string(static_cast<int>(opened.error().code));
    std::string text;
    while (true) {
      StreamDocument doc;
      Result<StreamState> state = opened.value()->Next(&doc);
      if (!state) return "error " + std::to_string(static_cast<int>(state.error().code));
      if (state.value() != StreamState::kAdvanced) break;
      if (!text.empty()) text += "\n";
      text += ToRelaxedJson(doc.doc);
    }
    return text;
  }
};

/// JSON documents, one a line, as Run writes them.
inline std::string Lines(std::string_view json_array) {
  BsonDocument wrapped = Json("{\"a\": " + std::string(json_array) + "}");
  std::string text;
  for (const BsonElement& e : wrapped.view()["a"].Document()) {
    if (!text.empty()) text += "\n";
    text += ToRelaxedJson(e.value.Document());
  }
  return text;
}

}  // namespace mayfly::test
