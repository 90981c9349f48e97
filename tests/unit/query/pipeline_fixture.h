#pragma once
#include <catch2/catch.hpp>

#include "storage/clock.h"
#include "tests/unit/query/memory_environment.h"
#include "tests/unit/query/query_test_util.h"

namespace mayfly::test {

/// Without blanks: JSON is the same with more or fewer of them.
inline std::string Squeeze(std::string text) {
  std::erase(text, ' ');
  return text;
}

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
