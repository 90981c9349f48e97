#pragma once
#include <string_view>

#include "protocol/error.h"
#include "protocol/value.h"
#include "query/expression/expression.h"

namespace mayfly {

/// A document or an array as JSON without spaces, as $toString writes it. Types that JSON lacks
/// become strings: ObjectIds in hex, dates in ISO 8601, binary values as $toString has them; NaN
/// and the infinities, too. Errors: ConversionFailure 241 for types without a text, Overflow 15 for
/// values that are too deep, BSONObjectTooLarge 10334 above 16 MB, those of GrowingBytes::Room.
Result<Value> JsonText(EvalContext& ctx, BsonValue container);

/// JSON (RFC 8259, nothing beside it) as the document or array that it describes. Wrappers of
/// extended JSON stay documents; of a name that is there twice the last value counts, at the place
/// of the first. REQUIRES: `to` is kDocument or kArray. Errors: ConversionFailure 241 for other
/// text, also if it nests deeper than BSON may; else those of JsonText.
Result<Value> ParseJsonText(EvalContext& ctx, std::string_view text, BsonType to);

}  // namespace mayfly
