#pragma once
#include <cstddef>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// How deep documents and arrays nest in a message that writes. A document in it that is too deep
/// to be stored (kMaxBsonDepth) is an error of that document, as in MongoDB, not of the whole
/// command.
inline constexpr int kMaxMessageDepth = 200;

/// Checks bytes from outside before any view is made of them: lengths, terminators, known types,
/// booleans 0/1, UTF-8 in names and strings where `check_utf8`, nesting at most kMaxBsonDepth
/// (Overflow 15). `bytes` must hold exactly one document. Errors: InvalidBSON 22, Overflow 15.
/// Threads: any.
Result<void> ValidateBson(std::string_view bytes, bool check_utf8 = true);

/// Like ValidateBson for a document at the start of `bytes`; returns its size. Never reads past
/// `bytes`.
/// `max_nesting`: levels of documents and arrays below the outermost.
Result<size_t> ValidateBsonPrefix(std::string_view bytes, bool check_utf8 = true,
                                  int max_nesting = kMaxBsonDepth);

}  // namespace mayfly
