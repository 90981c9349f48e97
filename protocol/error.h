#pragma once
#include <boost/outcome/basic_result.hpp>
#include <boost/outcome/policy/all_narrow.hpp>
#include <boost/outcome/try.hpp>
#include <string>
#include <string_view>

#include "protocol/error_codes.h"

namespace mayfly {

/// An expected failure: what a client is told. Exceptions are for bugs only.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternalError;
  std::string message;  ///< shown to the client; says what to change
  /// A BSON document (raw bytes, may be empty) whose fields join the error reply or the write
  /// error: keyPattern and keyValue of a duplicate key, for example.
  std::string details = {};
};

/// A value or an Error. Absence is an empty optional inside, not an error.
template <class T>
using Result = boost::outcome_v2::basic_result<T, Error, boost::outcome_v2::policy::all_narrow>;

/// `MAYFLY_TRY(auto x, F())`, `MAYFLY_TRY(F())`: the value, or return the error to the caller.
#define MAYFLY_TRY BOOST_OUTCOME_TRY
/// The same inside a coroutine.
#define MAYFLY_CO_TRY BOOST_OUTCOME_CO_TRY

/// Success of a Result<void>.
inline auto Ok() { return boost::outcome_v2::success(); }

}  // namespace mayfly
