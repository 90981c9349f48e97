#pragma once
#include <optional>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// The first name of `fields` that was there before, within them; none: each is there once. In
/// steps, and charged. Errors: those of ParseWork::Step.
Result<std::optional<std::string_view>> RepeatedName(BsonView fields);

/// That no option of a stage, no argument of an operator and no variable of a `let` is there twice:
/// who decides whether a pipeline is allowed must not see another collection in it than who runs
/// it, and one of two values would be ignored. Other values than documents pass. Errors: 40413;
/// those of ParseWork::Step.
Result<void> CheckOptionsOnce(std::string_view where, BsonValue options);

}  // namespace mayfly
