#pragma once
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// That no option of a stage, and no variable of a `let`, is there twice: who decides whether a
/// pipeline is allowed must not see another collection in it than who runs it, and one of two
/// values would be ignored. Other values than documents pass. Errors: 40413; those of
/// ParseWork::Step.
Result<void> CheckOptionsOnce(std::string_view where, BsonValue options);

}  // namespace mayfly
