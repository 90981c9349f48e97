// Projections from strangers: parsing and applying; what comes out must be BSON.
// Input: extended JSON, a projection and a document apart by a newline; or the two as BSON.
#include <cstdlib>
#include <string>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"
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
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('{')) {
    size_t line = input.find('\n');
    if (line == std::string_view::npos) return 0;
    auto spec = ParseJson(input.substr(0, line));
    auto doc = ParseJson(input.substr(line + 1));
    if (spec.has_value() && doc.has_value()) Check(spec.value(), doc.value());
    return 0;
  }
  auto first = ValidateBsonPrefix(input, false);
  if (!first.has_value()) return 0;
  auto rest = input.substr(first.value());
  if (!ValidateBson(rest, false).has_value()) return 0;
  Check(BsonView(input), BsonView(rest));
  return 0;
}
