#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"

/// MongoDB's wire protocol as bytes (manual: "MongoDB Wire Protocol", driver specification "OP_MSG"
/// and "OP_COMPRESSED"). No sockets.
namespace mayfly {

inline constexpr size_t kMessageHeaderSize = 16;
inline constexpr int32_t kMaxMessageSize = 48'000'000;

/// The messages that are read: OP_MSG, OP_QUERY of old drivers' handshakes, and either of them
/// compressed. OP_REPLY is only sent, as the answer to OP_QUERY.
enum class Opcode : int32_t { kReply = 1, kQuery = 2004, kCompressed = 2012, kMsg = 2013 };

/// The header of every message (manual: "MongoDB Wire Protocol"), in host byte order.
struct MessageHeader {
  int32_t length = 0;
  int32_t request_id = 0;
  int32_t response_to = 0;
  int32_t opcode = 0;
};

/// What the buffer holds at its start.
struct FrameStatus {
  enum Kind { kNeedMore, kComplete, kBroken } kind = kNeedMore;
  size_t length =
      0;  ///< kComplete: bytes of the message; kNeedMore: bytes it will have, 0 when not known yet
  const char* reason = nullptr;  ///< kBroken: why the connection must be closed (a literal)
};
/// Looks at length and opcode of the first message in `buffer`, which may have come only in part.
/// Broken: a length outside of 16 … kMaxMessageSize, or an opcode that is not read.
FrameStatus CheckFrame(std::string_view buffer);
/// REQUIRES: at least kMessageHeaderSize bytes.
MessageHeader ReadHeader(const char* message);

inline constexpr uint32_t kMsgChecksumPresent = 1u << 0;
inline constexpr uint32_t kMsgMoreToCome = 1u << 1;
inline constexpr uint32_t kMsgExhaustAllowed = 1u << 16;

/// One OP_MSG, as views into the frame. Every document is validated.
struct OpMsg {
  uint32_t flags = 0;
  BsonView body;
  /// A kind-1 section: documents that stand for a field of the body.
  struct Sequence {
    std::string_view name;
    std::vector<BsonView> documents;
  };
  std::vector<Sequence> sequences;
  /// The lists of their documents take more than the documents if these are small.
  large_memory::Hold hold;
  void DropSequences() {
    sequences.clear();
    hold.Release();
  }
  /// For the next message: the vector keeps its memory.
  void Clear() {
    flags = 0;
    body = BsonView();
    DropSequences();
  }
};

/// The legacy OP_QUERY, for `hello` and `isMaster` before OP_MSG is agreed.
struct OpQuery {
  int32_t flags = 0;
  std::string_view ns;
  int32_t number_to_skip = 0;
  int32_t number_to_return = 0;
  BsonView query;
};

/// How parsing failed: a broken frame ends the connection, bad content in a sound frame is answered
/// with `error`.
struct WireError {
  bool broken_frame = false;
  Error error{ErrorCode::kInvalidBSON, ""};
};

/// Parses a complete OP_MSG frame (header included). True, or `*failure` says why not; `out->flags`
/// is set either way, since an error is not answered when the sender asked for no reply. Content
/// errors: InvalidBSON 22, Overflow 15, 40431 (a sequence twice), 40433 (a sequence and a field of
/// the body with one name), InvalidLength 16 (absurdly many sequences or documents),
/// ExceededMemoryLimit 146 (no room for the lists of documents).
bool ParseOpMsg(std::string_view frame, OpMsg* out, WireError* failure);
bool ParseOpQuery(std::string_view frame, OpQuery* out, WireError* failure);

/// The compressors of OP_COMPRESSED, with their numbers on the wire.
enum class Compressor : uint8_t { kNone = 0, kSnappy = 1, kZlib = 2, kZstd = 3 };
/// "snappy", "zlib", "zstd"; kNone for other names.
Compressor CompressorFromName(std::string_view name);
std::string_view CompressorName(Compressor c);

/// The number of bytes that an OP_COMPRESSED frame announces, if a message may have so many; else
/// 0.
inline size_t UnpackedSize(std::string_view frame) {
  if (frame.size() < kMessageHeaderSize + 9 ||
      LoadLe<int32_t>(frame.data() + 12) != static_cast<int32_t>(Opcode::kCompressed))
    return 0;
  const int32_t n = LoadLe<int32_t>(frame.data() + 20);
  return n < 0 || n > kMaxMessageSize ? 0 : static_cast<size_t>(n);
}

/// Turns an OP_COMPRESSED frame into the frame inside, written to `*out` (replaced). The announced
/// size is checked before anything is allocated, against the limit and against what so many bytes
/// of the format can hold; the output never grows past it. A false return is a broken frame:
/// `*reason` is a literal.
bool Decompress(std::string_view frame, std::string* out, Compressor* used, const char** reason);

/// Starts an OP_MSG reply at the end of `out`: header and flags with room for the length; the body
/// is appended by a BsonBuilder. Returns where the message starts.
size_t BeginOpMsg(std::string& out, int32_t request_id, int32_t response_to, uint32_t flags);
/// The same for the OP_REPLY that answers an OP_QUERY.
size_t BeginOpReply(std::string& out, int32_t request_id, int32_t response_to);
/// Writes the length of the message that starts at `start` and ends at the end of `out`; with
/// kMsgChecksumPresent set in its flags appends the checksum first.
void FinishMessage(std::string& out, size_t start);
/// Replaces the finished message at `start` by its OP_COMPRESSED form, also when that is no
/// smaller: drivers expect a compressed reply to a compressed request. False leaves it as it was.
bool CompressMessage(std::string& out, size_t start, Compressor compressor, int zlib_level = -1);

/// CRC-32C as OP_MSG's checksum uses it.
uint32_t Crc32c(std::string_view bytes);

}  // namespace mayfly
