// Projections from strangers: parsing and applying; what comes out must be BSON.
// Input: extended JSON, a projection and a document apart by a newline; or the two as BSON.
#include <cstdlib>
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "query/projection/projection.h"

using namespace mayfly;

namespace {

void Apply(const Result<ProjectionPtr>& projection, const VariableScope& scope, BsonView doc) {
  if (!projection.has_value()) return;
  EvalContext ctx;
  ctx.variables.resize(static_cast<size_t>(scope.slots()));
  auto out = projection.value()->Apply(doc, ctx);
  if (out.has_value()) {
    auto valid = ValidateBson(out.value().bytes(), false);
    // Dotted names and expressions may nest deeper than a document may; whoever stores or sends it
    // checks.
    if (!valid.has_value() && valid.error().code != ErrorCode::kOverflow) std::abort();
  }
  (void)BuildBson([&](BsonBuilder& b) { projection.value()->Serialize(b); });
  (void)projection.value()->Touches("a.b");
}

void Check(BsonView spec, BsonView doc) {
  VariableScope scope;
  auto filter = ParseMatch(BsonView());
  Apply(ParseFindProjection(spec, filter.value().get(), scope), scope, doc);
  Apply(ParseAggProject(spec, scope), scope, doc);
  Apply(ParseAddFields(spec, scope), scope, doc);
  Apply(ParseUnset(spec.First().value, scope), scope, doc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  WithTwoDocuments({reinterpret_cast<const char*>(data), size}, Check);
  return 0;
}
