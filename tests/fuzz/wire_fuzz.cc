// Frames: whatever arrives is a message, an error to answer or a reason to close; views never leave
// the frame.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "protocol/wire_message.h"

namespace {

using namespace mayfly;

void RequireInside(std::string_view frame, BsonView doc) {
  Require(doc.data() >= frame.data() && doc.data() + doc.size() <= frame.data() + frame.size(),
          "a document lies inside its frame");
  Require(doc.Count() >= 0, "a document can be walked");
}

void ReadMessage(std::string_view frame) {
  MessageHeader h = ReadHeader(frame.data());
  WireError failure;
  if (h.opcode == static_cast<int32_t>(Opcode::kMsg)) {
    OpMsg msg;
    if (!ParseOpMsg(frame, &msg, &failure))
      return Require(!failure.error.message.empty(), "a failure says why");
    RequireInside(frame, msg.body);
    for (const auto& s : msg.sequences)
      for (BsonView d : s.documents) RequireInside(frame, d);
  } else if (h.opcode == static_cast<int32_t>(Opcode::kQuery)) {
    OpQuery q;
    if (ParseOpQuery(frame, &q, &failure)) RequireInside(frame, q.query);
  }
}

void ReadFrame(const std::string& frame) {
  FrameStatus s = CheckFrame(frame);
  if (s.kind == FrameStatus::kBroken)
    return Require(s.reason != nullptr, "a broken frame says why");
  if (s.kind == FrameStatus::kNeedMore) return;
  std::string_view message(frame.data(), s.length);
  if (ReadHeader(message.data()).opcode != static_cast<int32_t>(Opcode::kCompressed))
    return ReadMessage(message);
  std::string inside;
  Compressor used;
  const char* reason = nullptr;
  if (!Decompress(message, &inside, &used, &reason))
    return Require(reason != nullptr, "a refusal says why");
  Require(ReadHeader(inside.data()).length == static_cast<int32_t>(inside.size()),
          "the length inside is right");
  ReadMessage(inside);
  std::string again = inside;
  if (!CompressMessage(again, 0, used)) return;
  std::string back;
  Require(Decompress(again, &back, &used, &reason) && back == inside,
          "what is compressed opens again");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string input(reinterpret_cast<const char*>(data), size);
  ReadFrame(input);
  // The same bytes behind a good header, so that not every input dies on its first four bytes.
  static constexpr int32_t kOpcodes[] = {2013, 2004, 2012};
  std::string framed(16, '\0');
  framed += input.substr(1);
  StoreLe<int32_t>(framed.data(), static_cast<int32_t>(framed.size()));
  StoreLe<int32_t>(framed.data() + 12, kOpcodes[data[0] % 3]);
  if (data[0] % 3 == 0 && (data[0] & 64) && framed.size() >= 24) {
    framed[16] = static_cast<char>(framed[16] | 1);  // a checksum that is right
    StoreLe<uint32_t>(framed.data() + framed.size() - 4,
                      Crc32c(std::string_view(framed).substr(0, framed.size() - 4)));
  }
  ReadFrame(framed);
  return 0;
}
