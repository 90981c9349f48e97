#pragma once
#include <string_view>

namespace mayfly {

/// The protocol of a client that does not use MongoDB's wire protocol.
enum class ForeignProtocol { kNone, kTls, kHttp };

/// By the first bytes of a connection.
ForeignProtocol RecognizeForeign(std::string_view bytes);
/// Whether these bytes begin a TLS connection; kPerhaps: there are too few to tell. Members and
/// drivers send nothing that could be taken for it.
enum class TlsStart { kNo, kPerhaps, kYes };
TlsStart LooksLikeTls(std::string_view bytes);
/// For bytes that look like TLS: the length of the first record, with its header.
size_t FirstTlsRecord(std::string_view bytes);
/// The answer to the client before its connection closes, in its own protocol, and the log's
/// text.
std::string_view ForeignAnswer(ForeignProtocol p);
std::string_view ForeignReason(ForeignProtocol p);

}  // namespace mayfly
