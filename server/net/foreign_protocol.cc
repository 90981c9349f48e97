#include "server/net/foreign_protocol.h"

#include <cstdint>

#include "protocol/wire_message.h"

namespace mayfly {

ForeignProtocol RecognizeForeign(std::string_view bytes) {
  for (std::string_view method : {"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PRI "})
    if (bytes.starts_with(method)) return ForeignProtocol::kHttp;
  // A record of type handshake (22) and version 3.x that holds a ClientHello (1) of version 3.x. As
  // the length of a message it would be a large one, which is waited for, so it is looked at early;
  // a message of that length has an opcode where the hello has its random bytes.
  auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() >= 11 && at(0) == 22 && at(1) == 3 && at(2) <= 4 && at(5) == 1 && at(9) == 3 &&
      (bytes.size() < kMessageHeaderSize ||
       CheckFrame(bytes.substr(0, kMessageHeaderSize)).kind == FrameStatus::kBroken))
    return ForeignProtocol::kTls;
  return ForeignProtocol::kNone;
}

TlsStart LooksLikeTls(std::string_view bytes) {
  // As above; a message's bytes 8 to 11 say what it answers, which is nothing.
  auto differs = [&](size_t i, uint8_t low, uint8_t high) {
    return i < bytes.size() &&
           (static_cast<uint8_t>(bytes[i]) < low || static_cast<uint8_t>(bytes[i]) > high);
  };
  if (differs(0, 22, 22) || differs(1, 3, 3) || differs(2, 0, 4) || differs(5, 1, 1) ||
      differs(9, 3, 3))
    return TlsStart::kNo;
  return bytes.size() >= 10 ? TlsStart::kYes : TlsStart::kPerhaps;
}

size_t FirstTlsRecord(std::string_view bytes) {
  return 5 + (size_t{static_cast<uint8_t>(bytes[3])} << 8 | static_cast<uint8_t>(bytes[4]));
}

std::string_view ForeignAnswer(ForeignProtocol p) {
  switch (p) {
    case ForeignProtocol::kNone:
      return {};
    case ForeignProtocol::kTls:
      return {"\x15\x03\x03\x00\x02\x02\x28", 7};  // fatal alert: handshake_failure
    case ForeignProtocol::kHttp:
      return "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n"
             "Content-Length: 85\r\n\r\n"
             "It looks like you are trying to access MongoDB over HTTP on the native driver "
             "port.\r\n";
  }
  return {};
}

std::string_view ForeignReason(ForeignProtocol p) {
  return p == ForeignProtocol::kTls
             ? "SSL handshake received but server is started without SSL support: connect with "
               "tls=false"
             : "an HTTP request on the port of the drivers: the HTTP endpoint is on --httpPort";
}

}  // namespace mayfly
