// Updates: whatever parses must apply without harm and leave valid BSON with the same _id. Inputs
// drive a grammar of updates, so that most of them get past the parser; some are taken as BSON as
// they are.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "protocol/bson_validate.h"
#include "query/expression/insert_prepare.h"
#include "query/update/update.h"

namespace {

using namespace mayfly;

void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

class Generator {
 public:
  explicit Generator(FuzzedDataProvider& in) : in_(in) {}

  const char* Pick(std::initializer_list<const char*> from) {
    return *(from.begin() + in_.ConsumeIntegralInRange<size_t>(0, from.size() - 1));
  }
  std::string Path() {
    std::string path = Pick({"a", "b", "c", "_id", "0", "", "$a"});
    for (int n = in_.ConsumeIntegralInRange(0, 4); n > 0; --n)
      path += std::string(".") +
              Pick({"a", "b", "0", "1", "12", "$", "$[]", "$[e]", "$[f]", "$id", "$x", ""});
    return path;
  }
  void Scalar(BsonBuilder& b, std::string_view name) {
    switch (in_.ConsumeIntegralInRange(0, 12)) {
      case 0:
        b.Append(name, in_.ConsumeIntegral<int32_t>());
        break;
      case 1:
        b.Append(name, in_.ConsumeIntegral<int64_t>());
        break;
      case 2:
        b.Append(name, in_.ConsumeFloatingPoint<double>());
        break;
      case 3:
        b.Append(name, in_.ConsumeRandomLengthString(8));
        break;
      case 4:
        b.Append(name, in_.ConsumeBool());
        break;
      case 5:
        b.AppendNull(name);
        break;
      case 6:
        b.AppendDecimal(name, {in_.ConsumeIntegral<uint64_t>(), in_.ConsumeIntegral<uint64_t>()});
        break;
      case 7:
        b.AppendTimestamp(name, in_.ConsumeIntegralInRange<uint64_t>(0, 2));
        break;
      case 8:
        b.AppendRegex(name, Pick({"a", "^x", "("}), Pick({"", "i"}));
        break;
      default:
        b.Append(name, in_.ConsumeIntegralInRange<int32_t>(-2, 2));
        break;
    }
  }
  void Any(BsonBuilder& b, std::string_view name, int depth) {
    int kind = depth > 0 ? in_.ConsumeIntegralInRange(0, 4) : 0;
    if (kind <= 1) return Scalar(b, name);
    if (kind == 2) {
      BsonArrayBuilder array = b.OpenArray(name);
      for (int n = in_.ConsumeIntegralInRange(0, 5); n > 0; --n)
        Any(array.raw(), array.NextName(), depth - 1);
      return;
    }
    BsonBuilder sub = b.OpenDocument(name);
    for (int n = in_.ConsumeIntegralInRange(0, 4); n > 0; --n)
      Any(sub,
          kind == 3 ? Pick({"a", "b", "c", "0", "_id"})
                    : Pick({"$each", "$slice", "$sort", "$position", "$gt", "$in", "$elemMatch",
                            "$or", "$and", "and", "or", "xor", "$type", "$not", "$exists", "a"}),
          depth - 1);
  }
  BsonDocument Document() {
    return BuildBson([&](BsonBuilder& b) {
      b.Append("_id", 1);
      for (const char* name : {"a", "b", "c", "0"})
        if (in_.ConsumeBool()) Any(b, name, 4);
    });
  }
  BsonDocument Operators() {
    return BuildBson([&](BsonBuilder& b) {
      for (int n = in_.ConsumeIntegralInRange(1, 3); n > 0; --n) {
        BsonBuilder modifier = b.OpenDocument(Pick(
            {"$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$setOnInsert",
             "$currentDate", "$bit", "$addToSet", "$push", "$pop", "$pull", "$pullAll", "$foo"}));
        for (int m = in_.ConsumeIntegralInRange(0, 3); m > 0; --m) {
          std::string path = Path();
          if (in_.ConsumeIntegralInRange(0, 5) == 0) {
            modifier.Append(path, Path());
          } else {
            Any(modifier, path, 3);
          }
        }
      }
    });
  }
  /// Text as a client sends it, also what no name may hold.
  std::string Text() {
    std::string text = Pick({"a", "b", "$a", "$$ROOT", "", ".", "$"});
    if (in_.ConsumeIntegralInRange(0, 3) == 0) text += in_.ConsumeRandomLengthString(6);
    if (in_.ConsumeIntegralInRange(0, 3) == 0) text.push_back('\0');
    return text;
  }
  /// Expressions that make names out of text.
  void Expression(BsonBuilder& b, std::string_view name, int depth) {
    switch (depth > 0 ? in_.ConsumeIntegralInRange(0, 6) : 0) {
      case 1:
      case 2: {
        const char* op = Pick({"$setField", "$unsetField", "$getField"});
        BsonBuilder call = b.OpenDocument(name);
        BsonBuilder args = call.OpenDocument(op);
        Expression(args, "field", depth - 1);
        Expression(args, "input", depth - 1);
        if (in_.ConsumeBool()) Expression(args, "value", depth - 1);
        return;
      }
      case 3: {
        BsonBuilder call = b.OpenDocument(name);
        BsonArrayBuilder outer = call.OpenArray("$arrayToObject");
        BsonArrayBuilder pairs = outer.OpenArray();
        for (int n = in_.ConsumeIntegralInRange(0, 3); n > 0; --n) {
          BsonArrayBuilder pair = pairs.OpenArray();
          Expression(pair.raw(), pair.NextName(), depth - 1);
          Expression(pair.raw(), pair.NextName(), depth - 1);
        }
        return;
      }
      case 4: {
        const char* op = Pick({"$mergeObjects", "$concat", "$objectToArray", "$concatArrays",
                               "$ifNull", "$literal", "$toString", "$split"});
        BsonBuilder call = b.OpenDocument(name);
        BsonArrayBuilder args = call.OpenArray(op);
        for (int n = in_.ConsumeIntegralInRange(0, 3); n > 0; --n)
          Expression(args.raw(), args.NextName(), depth - 1);
        return;
      }
      case 5:
        return Any(b, name, 2);
      default:
        b.Append(name, Text());
    }
  }
  /// The stages of an update pipeline, under "u".
  BsonDocument Stages() {
    return BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder list = b.OpenArray("u");
      for (int n = in_.ConsumeIntegralInRange(1, 3); n > 0; --n) {
        BsonBuilder stage = list.OpenDocument();
        const char* name = Pick({"$set", "$unset", "$project", "$replaceWith", "$replaceRoot"});
        if (std::string_view(name) == "$unset") {
          stage.Append(name, Text());
        } else if (std::string_view(name) == "$replaceWith") {
          Expression(stage, name, 4);
        } else {
          BsonBuilder spec = stage.OpenDocument(name);
          Expression(spec,
                     std::string_view(name) == "$replaceRoot" ? "newRoot" : Pick({"a", "b.c", "d"}),
                     4);
        }
      }
    });
  }
  BsonDocument ArrayFilter() {
    return BuildBson([&](BsonBuilder& b) { Any(b, Pick({"e", "f", "e.a", "E", "$or"}), 3); });
  }

 private:
  FuzzedDataProvider& in_;
};

void Run(BsonView old, BsonValue u, const std::vector<BsonView>& filters,
         const MatchExpression* match, int position) {
  VariableScope scope;
  auto update = Update::Parse(u, filters, scope, {.upsert = true});
  if (!update) {
    Require(!update.error().message.empty(), "an error has a message");
    return;
  }
  EvalContext ctx;
  ctx.now = {1};
  ctx.variables.resize(static_cast<size_t>(scope.slots()));
  std::string out;
  auto modified = update.value()->ApplyTo(old, position, false, ctx, &out);
  if (modified && modified.value()) {
    Require(ValidateBson(out, false).has_value(), "the result is valid BSON");
    Require(ValuesEqual(BsonView(out.data())["_id"], old["_id"]), "_id stays");
    Require(out != old.bytes(), "modified means another document");
  }
  auto made = update.value()->MakeUpsert(match, ctx.now, ctx);
  if (made) {
    Require(ValidateBson(made.value(), false).has_value(), "an upsert is valid BSON");
    Require(BsonView(made.value().data()).First().name == "_id", "_id comes first");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  int position = in.ConsumeIntegralInRange(-1, 3);
  Generator generate(in);
  if (in.ConsumeIntegralInRange(0, 7) == 0) {
    // {old: {…}, u: …, q: {…}} as raw BSON.
    std::string bytes = in.ConsumeRemainingBytesAsString();
    if (!ValidateBson(bytes)) return 0;
    BsonView all(bytes.data());
    if (!all["old"].IsDocument() || all["u"].missing()) return 0;
    std::string scratch;
    auto old = PrepareInsert(all["old"].Document(), {1}, &scratch);
    if (!old) return 0;
    MatchPtr match;
    if (all["q"].IsDocument()) {
      auto parsed = ParseMatch(all["q"].Document());
      if (parsed) match = std::move(parsed.value());
    }
    Run(old.value(), all["u"], {}, match.get(), position);
    return 0;
  }
  BsonDocument old = generate.Document();
  if (in.ConsumeIntegralInRange(0, 2) == 0) {
    const BsonDocument stages = generate.Stages();
    Run(old, stages.view()["u"], {}, nullptr, -1);
    return 0;
  }
  BsonDocument update =
      in.ConsumeIntegralInRange(0, 7) == 0 ? generate.Document() : generate.Operators();
  std::vector<BsonDocument> filters;
  for (int n = in.ConsumeIntegralInRange(0, 2); n > 0; --n)
    filters.push_back(generate.ArrayFilter());
  std::vector<BsonView> views(filters.begin(), filters.end());
  MatchPtr match;
  auto parsed = ParseMatch(generate.Document());
  if (parsed) match = std::move(parsed.value());
  Run(old, update.view().AsValue(), views, match.get(), position);
  return 0;
}
