#include "protocol/wire_message.h"

#include <boost/crc.hpp>
#include <catch2/catch.hpp>
#include <random>

#include "protocol/bson_builder.h"

using namespace mayfly;

namespace {

std::string Le32(uint32_t v) { return {reinterpret_cast<const char*>(&v), 4}; }

std::string Framed(int32_t opcode, const std::string& payload) {
  return Le32(static_cast<uint32_t>(16 + payload.size())) + Le32(7) + Le32(0) +
         Le32(static_cast<uint32_t>(opcode)) + payload;
}

std::string Doc(const char* name = "ping", int value = 1) {
  return BuildBson([&](BsonBuilder& b) { b.Append(name, value); }).bytes();
}

std::string Body(const std::string& doc) { return std::string(1, '\0') + doc; }
std::string Sequence(const std::string& name, const std::string& docs, int32_t off_by = 0) {
  return "\x01" +
         Le32(static_cast<uint32_t>(4 + static_cast<int32_t>(name.size()) + 1 +
                                    static_cast<int32_t>(docs.size()) + off_by)) +
         name + std::string(1, '\0') + docs;
}
std::string Msg(const std::string& sections, uint32_t flags = 0) {
  std::string frame = Framed(2013, Le32(flags) + sections);
  if (flags & kMsgChecksumPresent) {
    StoreLe<int32_t>(frame.data(), static_cast<int32_t>(frame.size() + 4));
    frame += Le32(Crc32c(frame));
  }
  return frame;
}
std::string WithByte(std::string s, size_t at, char c) {
  s[at] = c;
  return s;
}

std::string Compressed(uint8_t id, int32_t opcode, int32_t size, const std::string& data) {
  return Framed(2012, Le32(static_cast<uint32_t>(opcode)) + Le32(static_cast<uint32_t>(size)) +
                          std::string(1, static_cast<char>(id)) + data);
}

}  // namespace

TEST_CASE("A frame is complete, needs more, or is broken", "[wire]") {
  using S = FrameStatus;
  const std::string whole = Msg(Body(Doc()));
  struct Case {
    const char* name;
    std::string buffer;
    S::Kind kind;
    size_t length;
  };
  const Case cases[] = {
      {"nothing", "", S::kNeedMore, 0},
      {"three bytes", whole.substr(0, 3), S::kNeedMore, 0},
      {"only the length", whole.substr(0, 4), S::kNeedMore, whole.size()},
      {"half a header", whole.substr(0, 15), S::kNeedMore, whole.size()},
      {"all but a byte", whole.substr(0, whole.size() - 1), S::kNeedMore, whole.size()},
      {"a message", whole, S::kComplete, whole.size()},
      {"a message and the next one's start", whole + "xyz", S::kComplete, whole.size()},
      {"length 0", Le32(0), S::kBroken, 0},
      {"length 15", Le32(15) + whole.substr(4), S::kBroken, 0},
      {"negative length", Le32(0x80000000u), S::kBroken, 0},
      {"length -1", Le32(0xFFFFFFFFu), S::kBroken, 0},
      {"the largest length", Le32(48'000'000) + whole.substr(4), S::kNeedMore, 48'000'000},
      {"one more", Le32(48'000'001), S::kBroken, 0},
      {"a web browser", "GET / HTTP/1.1\r\n\r\n", S::kBroken, 0},
      {"OP_INSERT", Framed(2002, "x"), S::kBroken, 0},
      {"OP_REPLY from a client", Framed(1, "x"), S::kBroken, 0},
      {"opcode 0", Framed(0, ""), S::kBroken, 0},
      {"OP_QUERY", Framed(2004, "x"), S::kComplete, 17},
      {"OP_COMPRESSED", Framed(2012, "x"), S::kComplete, 17},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    FrameStatus s = CheckFrame(c.buffer);
    CHECK(s.kind == c.kind);
    CHECK((s.reason != nullptr) == (c.kind == S::kBroken));
    if (c.kind != S::kBroken) CHECK(s.length == c.length);
  }
}

TEST_CASE("OP_MSG: what is sound, what ends the connection, what gets an error reply", "[wire]") {
  enum Want { kFine, kBroken, kBad };
  const std::string ping = Body(Doc()), docs = Doc("a") + Doc("b");
  std::string bad_doc = Doc();
  bad_doc[4] = '\x66';  // an unknown type
  const std::string checked = Msg(ping, kMsgChecksumPresent);
  std::string many_sequences = ping, many_documents;
  for (int i = 0; i < 17; ++i) many_sequences += Sequence("s" + std::to_string(i), "");
  for (int i = 0; i < 1'000'001; ++i) many_documents.append("\x05\0\0\0\0", 5);
  struct Case {
    const char* name;
    std::string frame;
    Want want;
    int code;
  };
  const Case cases[] = {
      {"a body", Msg(ping), kFine, 0},
      {"a body and a sequence", Msg(ping + Sequence("documents", docs)), kFine, 0},
      {"the sequence first", Msg(Sequence("documents", docs) + ping), kFine, 0},
      {"an empty sequence", Msg(ping + Sequence("documents", "")), kFine, 0},
      {"two sequences", Msg(ping + Sequence("ops", docs) + Sequence("nsInfo", docs)), kFine, 0},
      {"more to come", Msg(ping, kMsgMoreToCome), kFine, 0},
      {"exhaust allowed", Msg(ping, kMsgExhaustAllowed), kFine, 0},
      {"an unknown optional flag", Msg(ping, 1u << 20), kFine, 0},
      {"a checksum", checked, kFine, 0},
      {"an unknown required flag", Msg(ping, 1u << 2), kBroken, 17},
      {"another one", Msg(ping, 1u << 15), kBroken, 17},
      {"a wrong checksum", WithByte(checked, checked.size() - 1, '\x55'), kBroken, 17},
      {"a changed byte under a checksum", WithByte(checked, 22, '\x55'), kBroken, 17},
      {"a checksum that is not there", Framed(2013, Le32(kMsgChecksumPresent) + "abc"), kBroken,
       17},
      {"no flags", Framed(2013, "abc"), kBroken, 17},
      {"no section", Msg(""), kBroken, 17},
      {"no body", Msg(Sequence("documents", docs)), kBroken, 17},
      {"two bodies", Msg(ping + ping), kBroken, 17},
      {"section kind 2", Msg(ping + "\x02"), kBroken, 17},
      {"a body cut short", Msg(ping.substr(0, ping.size() - 1)), kBroken, 17},
      {"a body of four bytes", Msg(std::string(5, '\0')), kBroken, 17},
      {"a body with a huge length", Msg(WithByte(ping, 4, '\x7f')), kBroken, 17},
      {"a body with a negative length", Msg(WithByte(ping, 4, '\xff')), kBroken, 17},
      {"bytes behind the body", Msg(ping + "\x07"), kBroken, 17},
      {"a sequence longer than the message", Msg(ping + Sequence("documents", docs, 1)), kBroken,
       17},
      {"a sequence without its length", Msg(ping + "\x01\x02"), kBroken, 17},
      {"a sequence of length 4", Msg(ping + "\x01" + Le32(4)), kBroken, 17},
      {"a negative sequence", Msg(ping + "\x01" + Le32(0xFFFFFFF0u) + "x"), kBroken, 17},
      {"a sequence name without end", Msg(ping + "\x01" + Le32(7) + "abc"), kBroken, 17},
      {"a sequence ending inside a document",
       Msg(ping + Sequence("documents", docs.substr(0, docs.size() - 2))), kBroken, 17},
      {"a bad document as body", Msg(Body(bad_doc)), kBad, 22},
      {"a bad document in a sequence", Msg(ping + Sequence("documents", Doc() + bad_doc)), kBad,
       22},
      {"a sequence twice", Msg(ping + Sequence("d", docs) + Sequence("d", docs)), kBad, 40431},
      {"a sequence named like a field", Msg(ping + Sequence("ping", docs)), kBad, 40433},
      {"seventeen sequences", Msg(many_sequences), kBad, 16},
      {"a million and one documents", Msg(ping + Sequence("d", many_documents)), kBad, 16},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    REQUIRE(CheckFrame(c.frame).kind == FrameStatus::kComplete);
    OpMsg msg;
    WireError failure;
    bool fine = ParseOpMsg(c.frame, &msg, &failure);
    CHECK(fine == (c.want == kFine));
    if (fine) {
      CHECK(msg.body["ping"].Int32() == 1);
    } else {
      CHECK(failure.broken_frame == (c.want == kBroken));
      CHECK(static_cast<int>(failure.error.code) == c.code);
      CHECK_FALSE(failure.error.message.empty());
    }
  }
}

TEST_CASE("OP_MSG documents are views into the frame", "[wire]") {
  std::string frame =
      Msg(Body(Doc()) + Sequence("documents", Doc("a", 5) + Doc("b", 6)), kMsgMoreToCome);
  OpMsg msg;
  WireError failure;
  REQUIRE(ParseOpMsg(frame, &msg, &failure));
  CHECK(msg.flags == kMsgMoreToCome);
  REQUIRE(msg.sequences.size() == 1);
  CHECK(msg.sequences[0].name == "documents");
  REQUIRE(msg.sequences[0].documents.size() == 2);
  CHECK(msg.sequences[0].documents[1]["b"].Int32() == 6);
  const char* inside = msg.sequences[0].documents[1].data();
  CHECK((inside > frame.data() && inside < frame.data() + frame.size()));
}

TEST_CASE("What a command writes may be deeper than what is stored", "[wire]") {
  auto nested = [](int levels) {  // the outermost is one of them
    std::string bytes("\x05\0\0\0\0", 5);
    for (int i = 1; i < levels; ++i)
      bytes = Le32(static_cast<uint32_t>(bytes.size() + 8)) + "\x03" + "a" + '\0' + bytes + '\0';
    return bytes;
  };
  auto parses = [&](const char* sequence, int levels) {
    const std::string frame = Msg(Body(Doc()) + Sequence(sequence, nested(levels)));
    OpMsg msg;
    WireError failure;
    if (ParseOpMsg(frame, &msg, &failure)) return true;
    CHECK(failure.error.code == ErrorCode::kOverflow);
    return false;
  };
  CHECK(parses("documents", 200));
  CHECK_FALSE(parses("documents", 201));
  CHECK(parses("updates", 200));
  CHECK_FALSE(parses("updates", 201));
  auto body_parses = [&](const char* command, int levels) {  // in a body, which is a level itself
    const std::string document = nested(levels);
    const std::string body =
        Le32(static_cast<uint32_t>(4 + 1 + strlen(command) + 1 + document.size() + 1)) + "\x03" +
        command + '\0' + document + '\0';
    OpMsg msg;
    WireError failure;
    return ParseOpMsg(Msg(Body(body)), &msg, &failure);
  };
  for (const char* writes : {"insert", "update", "bulkWrite", "findAndModify", "findandmodify"}) {
    CHECK(body_parses(writes, 200));
    CHECK_FALSE(body_parses(writes, 201));
  }
  for (const char* other : {"find", "inserts", "inser", ""}) {
    CHECK(body_parses(other, 180));
    CHECK_FALSE(body_parses(other, 181));
  }
}

TEST_CASE("OP_QUERY is read for the legacy handshake", "[wire]") {
  const std::string hello = Doc("isMaster");
  const std::string ns = std::string("admin.$cmd") + '\0';
  const std::string numbers = Le32(0) + Le32(0xFFFFFFFFu);
  OpQuery q;
  WireError failure;
  const std::string frame = Framed(2004, Le32(4) + ns + numbers + hello);
  REQUIRE(ParseOpQuery(frame, &q, &failure));
  CHECK(q.flags == 4);
  CHECK(q.ns == "admin.$cmd");
  CHECK(q.number_to_return == -1);
  CHECK(q.query["isMaster"].Int32() == 1);
  REQUIRE(ParseOpQuery(Framed(2004, Le32(0) + ns + numbers + hello + hello), &q, &failure));
  std::string bad = hello;
  bad[4] = '\x66';
  struct Case {
    const char* name;
    std::string payload;
    bool broken;
  };
  const Case cases[] = {{"empty", "", true},
                        {"no namespace", Le32(0), true},
                        {"a namespace without end", Le32(0) + "admin.$cmd", true},
                        {"no document", Le32(0) + ns + numbers, true},
                        {"half a document", Le32(0) + ns + numbers + hello.substr(0, 9), true},
                        {"bytes behind", Le32(0) + ns + numbers + hello + "x", true},
                        {"a bad document", Le32(0) + ns + numbers + bad, false}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    WireError why;
    CHECK_FALSE(ParseOpQuery(Framed(2004, c.payload), &q, &why));
    CHECK(why.broken_frame == c.broken);
  }
}

TEST_CASE("Replies are framed in place", "[wire]") {
  std::string out = "before";
  size_t start = BeginOpMsg(out, 9, 7, 0);
  BsonBuilder(out).Append("ok", 1.0).Done();
  FinishMessage(out, start);
  std::string_view reply = std::string_view(out).substr(6);
  MessageHeader h = ReadHeader(reply.data());
  CHECK(h.length == static_cast<int32_t>(reply.size()));
  CHECK(h.request_id == 9);
  CHECK(h.response_to == 7);
  OpMsg msg;
  WireError failure;
  REQUIRE(ParseOpMsg(reply, &msg, &failure));
  CHECK(msg.body["ok"].Double() == 1.0);

  std::string checked;
  start = BeginOpMsg(checked, 9, 7, kMsgChecksumPresent);
  BsonBuilder(checked).Append("ok", 1.0).Done();
  FinishMessage(checked, start);
  CHECK(ReadHeader(checked.data()).length == static_cast<int32_t>(checked.size()));
  CHECK(ParseOpMsg(checked, &msg, &failure));

  std::string legacy;
  start = BeginOpReply(legacy, 9, 7);
  BsonBuilder(legacy).Append("ok", 1.0).Done();
  FinishMessage(legacy, start);
  CHECK(ReadHeader(legacy.data()).opcode == 1);
  CHECK(ReadHeader(legacy.data()).length == static_cast<int32_t>(legacy.size()));
  CHECK(LoadLe<int32_t>(legacy.data() + 32) == 1);  // numberReturned
  CHECK(BsonView(legacy.data() + 36)["ok"].Double() == 1.0);
}

TEST_CASE("The checksum is CRC-32C", "[wire]") {
  // RFC 3720, B.4.
  CHECK(Crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(Crc32c(std::string(32, '\xff')) == 0x62A8AB43);
  CHECK(Crc32c("123456789") == 0xE3069283);
  CHECK(Crc32c("") == 0);
  // Whatever the length, and however it lies in memory.
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes.push_back(static_cast<char>(i * 37));
  for (size_t from = 0; from < 9; ++from)
    for (size_t n = 0; from + n <= bytes.size(); ++n) {
      boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> slow;
      slow.process_bytes(bytes.data() + from, n);
      REQUIRE(Crc32c(std::string_view(bytes).substr(from, n)) == slow.checksum());
    }
}

TEST_CASE("What is compressed comes out as it went in", "[wire]") {
  const Compressor compressor = GENERATE(Compressor::kSnappy, Compressor::kZlib, Compressor::kZstd);
  CAPTURE(CompressorName(compressor));
  CHECK(CompressorFromName(CompressorName(compressor)) == compressor);
  struct Case {
    const char* name;
    std::string text;
  };
  std::string noise;
  std::mt19937 random(3);
  while (noise.size() < 100'000)
    noise.append(random() % 30 + 1, static_cast<char>('a' + random() % 26));
  const Case cases[] = {{"repetitive", std::string(1000, 'x')},
                        {"noise", noise},
                        {"16 MB of one byte", std::string(16'000'000, 'x')}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    std::string out = "kept";
    size_t start = BeginOpMsg(out, 9, 7, 0);
    BsonBuilder(out).Append("text", c.text).Done();
    FinishMessage(out, start);
    const std::string plain = out.substr(4);
    REQUIRE(CompressMessage(out, start, compressor));
    CHECK(out.size() < plain.size() + 4);
    std::string_view frame = std::string_view(out).substr(4);
    REQUIRE(CheckFrame(frame).kind == FrameStatus::kComplete);
    std::string inside;
    Compressor used = Compressor::kNone;
    const char* reason = nullptr;
    bool opened = Decompress(frame, &inside, &used, &reason);
    CAPTURE(reason ? reason : "");
    REQUIRE(opened);
    CHECK(used == compressor);
    CHECK((inside == plain));

    // Every way to shorten it is noticed.
    for (size_t cut : {size_t{1}, size_t{2}, frame.size() / 2}) {
      std::string shorter(frame.substr(0, frame.size() - cut));
      StoreLe<int32_t>(shorter.data(), static_cast<int32_t>(shorter.size()));
      if (shorter.size() >= 16) CHECK_FALSE(Decompress(shorter, &inside, &used, &reason));
    }
  }
  std::string tiny;
  size_t start = BeginOpMsg(tiny, 9, 7, 0);
  BsonBuilder(tiny).Append("ok", 1.0).Done();
  FinishMessage(tiny, start);
  const std::string before = tiny;
  REQUIRE(CompressMessage(tiny, start, compressor));  // though it grows
  std::string inside;
  Compressor used = Compressor::kNone;
  const char* reason = nullptr;
  REQUIRE(Decompress(tiny, &inside, &used, &reason));
  CHECK(inside == before);
  CHECK_FALSE(CompressMessage(inside, 0, Compressor::kNone));
  CHECK(inside == before);
}

TEST_CASE("Compressed bombs and nonsense are refused before they cost memory", "[wire]") {
  const std::string plain = Le32(0) + Body(Doc());
  const auto size = static_cast<int32_t>(plain.size());
  struct Case {
    const char* name;
    std::string frame;
  };
  const Case cases[] = {
      {"no compression header", Framed(2012, "12345678")},
      {"unknown compressor", Compressed(4, 2013, size, plain)},
      {"compressor 255", Compressed(255, 2013, size, plain)},
      {"compressed in compressed", Compressed(0, 2012, size, plain)},
      {"an unknown opcode inside", Compressed(0, 2002, size, plain)},
      {"negative size", Compressed(0, 2013, -1, plain)},
      {"a size above the limit", Compressed(3, 2013, 48'000'000, std::string(10'000, 'x'))},
      {"the largest integer", Compressed(2, 2013, INT32_MAX, std::string(10'000, 'x'))},
      {"noop of another size", Compressed(0, 2013, size + 1, plain)},
      {"noop that shrinks", Compressed(0, 2013, size - 1, plain)},
      {"snappy that claims more than it holds",
       Compressed(1, 2013, 40'000'000, std::string("\x80\xb4\x89\x13", 4))},
      {"snappy of another size", Compressed(1, 2013, 5, std::string("\x06\x14", 2) + "abcdef")},
      {"zlib: a few bytes announce 40 MB", Compressed(2, 2013, 40'000'000, std::string(100, 'x'))},
      {"zlib nonsense", Compressed(2, 2013, 100, std::string(100, 'x'))},
      {"zstd: a few bytes announce 40 MB", Compressed(3, 2013, 40'000'000, std::string(100, 'x'))},
      {"zstd nonsense", Compressed(3, 2013, 100, std::string(100, 'x'))},
      {"nothing inside", Compressed(3, 2013, 100, "")},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    std::string out;
    Compressor used;
    const char* reason = nullptr;
    CHECK_FALSE(Decompress(c.frame, &out, &used, &reason));
    CHECK(reason != nullptr);
    CHECK(out.capacity() < 20'000'000);
  }
  std::string out;
  Compressor used;
  const char* reason = nullptr;
  CHECK(Decompress(Compressed(0, 2013, size, plain), &out, &used, &reason));
  CHECK(out == Framed(2013, plain));
}

TEST_CASE("Messages with any changed byte never lead outside the frame", "[wire]") {
  const std::string whole = Msg(Body(Doc()) + Sequence("documents", Doc("a") + Doc("b")));
  std::mt19937 random(11);
  int fine = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = whole;
    for (int k = 0; k < 2; ++k)
      changed[16 + random() % (changed.size() - 16)] = static_cast<char>(random());
    OpMsg msg;
    WireError failure;
    if (!ParseOpMsg(changed, &msg, &failure)) continue;
    ++fine;
    for (const auto& s : msg.sequences)
      for (BsonView d : s.documents) CHECK(d.data() + d.size() <= changed.data() + changed.size());
  }
  CHECK(fine > 100);
}

TEST_CASE("The lists of a message's documents are charged", "[wire]") {
  // The smallest documents: a view of one is larger than it is.
  constexpr size_t kDocuments = 300'000;
  std::string documents;
  for (size_t i = 0; i < kDocuments; ++i) documents += std::string("\x05\0\0\0\0", 5);
  const std::string frame =
      Msg(Body(Doc()) + Sequence("ops", documents) + Sequence("nsInfo", documents));
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  OpMsg msg;
  WireError failure;
  budget.SetLimit(int64_t{64} << 20);
  REQUIRE(ParseOpMsg(frame, &msg, &failure));
  const auto least = static_cast<int64_t>(2 * kDocuments * sizeof(BsonView));
  CHECK(budget.used() >= least);
  CHECK(msg.hold.held() == static_cast<size_t>(budget.used()));
  msg.Clear();
  CHECK(budget.used() == 0);

  // The frame is sound, so the connection may go on.
  budget.SetLimit(least);
  CHECK_FALSE(ParseOpMsg(frame, &msg, &failure));
  CHECK_FALSE(failure.broken_frame);
  CHECK(failure.error.code == ErrorCode::kExceededMemoryLimit);
  CHECK(budget.used() == static_cast<int64_t>(msg.hold.held()));
  msg.DropSequences();
  CHECK(budget.used() == 0);
}
