// What arrives on a connection between members, in every state of it: the two sides of the
// greeting, the frames behind it, and what is in them. Whatever comes is a frame, an error, or the
// end of the connection; nobody is let in without the key.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "fuzz_util.h"
#include "replication/data_copy.h"
#include "replication/heartbeat.h"
#include "replication/log_store.h"
#include "replication/member_link.h"

namespace {

using namespace mayfly;
namespace asio = boost::asio;

LinkIdentity Self(bool key, bool old) {
  static const std::string kLinkKey = MemberKey("a key that nobody guesses");
  static const std::string kOtherKey = MemberKey("nor this one");
  LinkIdentity id;
  id.node = 7;
  id.set_name = "rs0";
  id.set_id = "twelve bytes";
  if (key) {
    id.key = "a key that nobody guesses";
    id.link_keys = {kLinkKey, kOtherKey};
  } else {
    id.link_keys = {""};
  }
  id.old_handshake = old;
  return id;
}

template <class T>
LinkTask<void> Keep(LinkTask<Result<T>> task, std::optional<Result<T>>& out) {
  Result<T> r = co_await std::move(task);
  out.emplace(std::move(r));
}

/// The other end has sent `bytes` and gone.
struct Link {
  explicit Link(std::string_view bytes) {
    int s[2];
    Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) == 0, "two sockets");
    link.emplace(ByteStream(
        LinkSocket(io.get_executor(), asio::generic::stream_protocol(AF_UNIX, 0), s[0])));
    link->Unread(bytes);
    ::shutdown(s[1], SHUT_WR);
    other = s[1];
  }
  ~Link() {
    link.reset();
    ::close(other);
  }
  template <class T>
  std::optional<Result<T>> Run(LinkTask<Result<T>> task) {
    std::optional<Result<T>> out;
    asio::co_spawn(io.get_executor(), Keep(std::move(task), out),
                   [](std::exception_ptr e) { Require(e == nullptr, "nothing throws"); });
    io.run();
    Require(out.has_value(), "it ends");
    return out;
  }
  asio::io_context io;
  std::optional<MemberLink> link;
  int other = -1;
};

void Greet(std::string_view bytes, bool key, bool old) {
  {
    Link l(bytes);
    auto r = l.Run(l.link->Accept(Self(key, old)));
    Require(!*r, "nobody is let in without a proof");
    Require(!r->error().message.empty(), "an error says why");
  }
  for (uint8_t version : {1, 2}) {
    Link l(bytes);
    auto r = l.Run(l.link->Dial(Self(key, old), LinkPurpose::kStream, 0, version));
    Require(!*r, "nobody is taken for a member without a proof");
  }
}

LinkTask<Result<void>> ReadAll(MemberLink& link, size_t size) {
  for (size_t read = 0;;) {
    auto frame = co_await link.Read();
    if (!frame) co_return Ok();
    read += frame.value().body.size() + 5;
    Require(read <= size, "frames hold what has come");
  }
}

void ReadHeartbeat(std::string_view bytes) {
  Heartbeat h;
  if (!DecodeHeartbeat(bytes, &h)) return;
  Heartbeat again;
  Require(DecodeHeartbeat(EncodeHeartbeat(h), &again) && again.payload == h.payload &&
              again.applied.index == h.applied.index && again.works == h.works,
          "what is decoded can be encoded");
}

void ReadConfiguration(const std::string& bytes) {
  ConsensusConfiguration c, again;
  if (!DecodeConfiguration(bytes, &c)) return;
  Require(DecodeConfiguration(EncodeConfiguration(c), &again) &&
              again.members.size() == c.members.size() && again.payload == c.payload,
          "a configuration that is decoded can be encoded");
}

void ReadList(std::string_view bytes) {
  auto files = ParseCopyList(bytes);
  if (!files) return;
  for (const CopyFile& f : files.value())
    Require(!f.name.empty() && f.name[0] != '.' && f.name.find('/') == std::string::npos,
            "a file stays in its directory");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      Greet(input, true, false);
      break;
    case 1:
      Greet(input, true, true);
      break;
    case 2:
      Greet(input, false, false);
      break;
    case 3: {
      Link l(input);
      l.Run(ReadAll(*l.link, input.size()));
      break;
    }
    case 4:
      ReadHeartbeat(input);
      break;
    case 5:
      ReadConfiguration(input);
      break;
    case 6:
      ReadList(input);
      break;
    default: {
      Link l(input);
      l.Run(l.link->AskForStream("127.0.0.1:1"));
      break;
    }
  }
  return 0;
}
