// Expressions from strangers: parsing, evaluating and showing; whatever comes out is valid BSON.
// Input: extended JSON, a document whose fields are expressions and a document apart by a newline;
// or the two as BSON.
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "query/expression/expression.h"

using namespace mayfly;

namespace {

/// Nesting may be deeper than a stored document's: whoever stores or sends it looks at that.
void RequireValid(BsonView doc, const char* what) {
  auto valid = ValidateBson(doc.bytes(), false);
  Require(valid.has_value() || valid.error().code == ErrorCode::kOverflow, what);
}

void Check(BsonView spec, BsonView doc) {
  for (const BsonElement& e : spec) {
    VariableScope scope;
    auto expression = ParseExpression(e.value, scope);
    if (!expression.has_value()) {
      Require(!expression.error().message.empty(), "an error has a message");
      continue;
    }
    (void)scope.CheckConstants();
    const BsonDocument shown =
        BuildBson([&](BsonBuilder& b) { expression.value()->Serialize(b, "e"); });
    RequireValid(shown, "an expression is shown as valid BSON");
    std::set<std::string> paths;
    expression.value()->AddDependencies(&paths);
    EvalContext ctx;
    ctx.root = doc;
    ctx.now = {1};
    ctx.variables.resize(static_cast<size_t>(scope.slots()));
    auto made = expression.value()->Evaluate(ctx);
    if (!made.has_value()) continue;
    RequireValid(BuildBson([&](BsonBuilder& b) { b.Append("v", made.value().view()); }),
                 "the value of an expression is valid BSON");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  WithTwoDocuments({reinterpret_cast<const char*>(data), size}, Check);
  return 0;
}
