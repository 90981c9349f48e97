#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "replication/consensus.h"

// clang-format off
/// One authenticated connection between two members: both have proved that they have the key file, every frame is numbered and
/// signed, so that nothing can be put in, left out, repeated or sent to another connection. Not secret: TLS is for that.
///
///   frame    := size:le32 (of type, body and mac) type:u8 body mac
///   mac      := 16 bytes of HMAC-SHA256(direction key, number:le64 size type body); empty when there is no key file
///   The dialler sends {_mayflyMember: 1} as an OP_MSG first; after its reply the bytes are frames:
///   01 challenge  body := version:u8 (1) purpose:u8 nonce:32 node:le64 wanted:le64 text(set name) text(set id) text(own address)
///   02 answer     body := nonce:32 node:le64 has_data:u8 text(set name) text(set id) proof:32
///   03 proof      body := proof:32
///   04 refusal    body := code:le32 text
///   text     := size:le16 bytes
///   proof    := HMAC-SHA256(key, side || challenge body || answer body without its proof)     side: "acceptor" | "dialler"
///   direction key := HMAC-SHA256(key, side || both nonces)
// clang-format on
namespace mayfly {

using LinkExecutor = boost::asio::io_context::executor_type;
using LinkSocket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, LinkExecutor>;
template <class T>
using LinkTask = boost::asio::awaitable<T, LinkExecutor>;

enum class LinkPurpose : uint8_t { kStream = 1, kProbe = 2, kFetch = 3 };

/// What this node says of itself.
struct LinkIdentity {
  NodeId node = 0;
  std::string set_name, set_id, key, address;
  bool has_data = false;
};

/// The other side after the handshake.
struct LinkPeer {
  NodeInfo info;
  std::string address;  ///< acceptor's side only: where the dialler can be reached, by its own word
  LinkPurpose purpose = LinkPurpose::kStream;
};

/// Not thread-safe: on its executor. Frames of at most kMaxLinkFrame.
class MemberLink {
 public:
  static constexpr size_t kMaxLinkFrame = 80 << 20;
  explicit MemberLink(LinkSocket socket) : socket_(std::move(socket)) {}

  LinkSocket& socket() { return socket_; }
  /// Bytes that were read before the link was made.
  void Unread(std::string_view bytes) { in_.append(bytes); }
  void Close();

  /// Goes on where `other` is: its socket now belongs to this one.
  void TakeKeys(MemberLink& other);

  /// One frame as received, checked. The body is owned.
  struct Frame {
    uint8_t type = 0;
    std::string_view body;  ///< until the next Read
  };
  /// Errors: HostUnreachable 6 (the connection ended), AuthenticationFailed 18 (a frame that nobody signed), ProtocolError 17.
  LinkTask<Result<Frame>> Read(size_t max = kMaxLinkFrame);
  /// Appends a frame to what Flush sends. `body` in two pieces.
  void Add(uint8_t type, std::string_view body, std::string_view more = {});
  LinkTask<Result<void>> Flush();
  /// Called when a part of a frame has come or gone and more is to follow: a large one takes its
  /// time on a slow network.
  std::function<void()> moved;
  size_t unsent() const { return out_.size(); }

  /// The two sides of the handshake; the acceptor's begins behind the OP_MSG.
  /// Errors: AuthenticationFailed 18 (other key file), InvalidReplicaSetConfig 93 (other set), NodeNotFound 74 (another node than
  /// `wanted` lives there).
  LinkTask<Result<LinkPeer>> Dial(LinkIdentity self, LinkPurpose purpose, NodeId wanted);
  /// `admit`: whether who has proved to have the key is let in; an error is told to it and is the result.
  LinkTask<Result<LinkPeer>> Accept(LinkIdentity self,
                                    std::function<Result<void>(const LinkPeer&)> admit = {});

 private:
  LinkTask<Result<void>> Fill(size_t size);
  void SetKeys(const std::string& key, std::string_view nonces, bool dialler);

  LinkSocket socket_;
  std::string in_, out_;
  size_t in_used_ = 0;
  std::string read_key_, write_key_;  ///< empty: frames are not signed
  uint64_t read_number_ = 0, write_number_ = 0;
};

/// Opens a connection to host:port (names are resolved), sends the command and reads its reply: what follows are frames.
LinkTask<Result<std::unique_ptr<MemberLink>>> OpenLink(std::string address);

/// `host:port`, `[v6]:port`, or a host alone (port 27017).
bool SplitAddress(std::string_view address, std::string* host, std::string* port);

}  // namespace mayfly
