#pragma once
#include <string_view>

namespace mayfly {

/// What a client speaks that does not speak MongoDB's wire protocol.
enum class ForeignProtocol { kNone, kTls, kHttp };

/// By the first bytes of a connection.
ForeignProtocol RecognizeForeign(std::string_view bytes);
/// Whether these bytes begin a TLS connection; kPerhaps: there are too few to tell. Members and
/// drivers send nothing that could be taken for it.
enum class TlsStart { kNo, kPerhaps, kYes };
TlsStart LooksLikeTls(std::string_view bytes);
/// Of bytes that look like TLS: how long the first record is, with its header.
size_t FirstTlsRecord(std::string_view bytes);
/// What the client is told before its connection closes, in its own protocol, and what the log
/// says.
std::string_view ForeignAnswer(ForeignProtocol p);
std::string_view ForeignReason(ForeignProtocol p);

}  // namespace mayfly
