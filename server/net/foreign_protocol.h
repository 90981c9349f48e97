#pragma once
#include <string_view>

namespace mayfly {

/// What a client speaks that does not speak MongoDB's wire protocol.
enum class ForeignProtocol { kNone, kTls, kHttp };

/// By the first bytes of a connection.
ForeignProtocol RecognizeForeign(std::string_view bytes);
/// What the client is told before its connection closes, in its own protocol, and what the log
/// says.
std::string_view ForeignAnswer(ForeignProtocol p);
std::string_view ForeignReason(ForeignProtocol p);

}  // namespace mayfly
