#pragma once
#include <boost/outcome/basic_result.hpp>
#include <boost/outcome/policy/all_narrow.hpp>
#include <boost/outcome/try.hpp>
#include <string>
#include <string_view>
#include <utility>

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

/// Errors of the codes that most refusals have. BadValue 2.
inline Error BadValue(std::string message) { return {ErrorCode::kBadValue, std::move(message)}; }
/// FailedToParse 9.
inline Error FailedToParse(std::string message) {
  return {ErrorCode::kFailedToParse, std::move(message)};
}
/// TypeMismatch 14.
inline Error TypeMismatch(std::string message) {
  return {ErrorCode::kTypeMismatch, std::move(message)};
}
/// InvalidOptions 72.
inline Error InvalidOptions(std::string message) {
  return {ErrorCode::kInvalidOptions, std::move(message)};
}

/// Success of a Result<void>.
inline auto Ok() { return boost::outcome_v2::success(); }

}  // namespace mayfly
