// Whole pipelines over collections in memory: parsing, showing and running; every document that
// comes out, and every one that $out and $merge write, is valid BSON.
// Input: extended JSON, the body of an aggregate {"pipeline": […], "let": {…}} and {"docs": […]}
// apart by a newline; or the two as BSON.
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_validate.h"
#include "storage/clock.h"
#include "tests/unit/query/memory_environment.h"

using namespace mayfly;

namespace {

constexpr int kMaxDocuments = 200;

void RequireValid(BsonView doc, const char* what) {
  auto valid = ValidateBson(doc.bytes(), false);
  Require(valid.has_value() || valid.error().code == ErrorCode::kOverflow, what);
}

void Run(Pipeline& pipeline, test::MemoryEnvironment& env, Operation& op,
         const PipelineOptions& options) {
  if (pipeline.NeedsSource()) {
    auto source = env.OpenSource(op, options.db, options.collection, pipeline.TakeSource());
    if (!source.has_value()) return;
    pipeline.SetSource(std::move(source.value()));
  }
  pipeline.Attach(&op, &env);
  for (int n = 0; n < kMaxDocuments; ++n) {
    StreamDocument doc;
    auto state = pipeline.Next(&doc);
    if (!state.has_value() || state.value() != StreamState::kAdvanced) return;
    RequireValid(doc.doc, "a document of a pipeline is valid BSON");
  }
}

void Check(BsonView body, BsonView input) {
  const BsonValue stages = body["pipeline"], docs = input["docs"], let = body["let"];
  if (!stages.IsArray()) return;
  test::MemoryEnvironment env;
  env.has_index = body["noIndex"].missing();
  if (docs.IsArray())
    for (const BsonElement& e : docs.Document())
      if (e.value.IsDocument())
        for (const char* name : {"c", "o"}) env.collections[name].emplace_back(e.value.Document());
  PipelineOptions options{.db = "test", .collection = "c"};
  if (let.IsDocument()) options.let = let.Document();
  auto pipeline = Pipeline::Parse(stages.Document(), options);
  if (!pipeline.has_value()) {
    Require(!pipeline.error().message.empty(), "an error has a message");
    return;
  }
  if (!pipeline.value()->CheckConstants().has_value()) return;
  std::string shown;
  BsonArrayBuilder list(shown);
  pipeline.value()->Serialize(list);
  list.Done();
  RequireValid(BsonView(shown.data()), "a pipeline is shown as valid BSON");
  for (const std::string& ns : pipeline.value()->InvolvedNamespaces())
    Require(ns.find('\0') == std::string::npos, "no namespace has a NUL");
  SystemClock clock;
  Operation op(clock);
  Run(*pipeline.value(), env, op, options);
  for (const auto& [name, written] : env.collections)
    for (const BsonDocument& d : written) RequireValid(d, "what a pipeline writes is valid BSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  WithTwoDocuments({reinterpret_cast<const char*>(data), size}, Check);
  return 0;
}
