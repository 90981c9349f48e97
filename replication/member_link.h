#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replication/byte_stream.h"
#include "replication/consensus.h"
#include "security/key_file.h"

// clang-format off
/// One authenticated connection between two members: both have proved that they have the key file, every frame is numbered and
/// signed, so that nothing can be put in, left out, repeated or sent to another connection. Not secret: TLS is for that, below all of this (ByteStream).
///
///   frame    := size:le32 (of type, body and mac) type:u8 body mac
///   mac      := 16 bytes of HMAC-SHA256(direction key, number:le64 size type body); empty when there is no key file
///   The dialler sends {_mayflyMember: 1} as an OP_MSG first; after its reply the bytes are frames, of the dialler (>) and of the acceptor (<):
///   > 01 challenge  body := version:u8 (2) purpose:u8 nonce:32 node:le64 wanted:le64 text(set name) text(set id) text(own address)
///   < 05 nonce      body := nonce:32
///   > 03 proof      body := HMAC-SHA256(key, "dialler 2" || challenge body || nonce body)
///   < 02 answer     body := nonce:32 (the same) node:le64 has_data:u8 text(set name) text(set id) proof:32
///                   proof := HMAC-SHA256(key, "acceptor 2" || challenge body || answer body without its proof)
///   < 03 or 04      the verdict, signed already; 04 may also come in place of 05 and 02, and is not signed then
///   refusal body := code:le32 text
///   text     := size:le16 bytes
///   direction key := HMAC-SHA256(key, side || both nonces)     side: "frames of the dialler" | "frames of the acceptor"
///   key      := PBKDF2-HMAC-SHA256(key of the key file, "mayfly member link 2", kKeyRounds), 32 bytes
///
/// The dialler proves first: whoever connects without the key is shown nothing that it could try keys against. Whoever takes the place of an
/// acceptor sees one proof; each guess then costs kKeyRounds, so a key file should have 32 characters or more.
///
/// A key file may have several keys, of which two members need one in common: 03 then has a proof for each, in the dialler's order, and the
/// acceptor goes on with the first of its own that is among them. While a set gets a key file (transitionToAuth) no key is one of the keys.
///
/// Version 3, by certificates: both sides of the TLS connection have shown that of a member (Tls::IsMember), so nothing is proved or signed.
///   > 01 (version 3)   < 02 (proof: 32 zeros)   < 03 or 04      04 may also come in place of 02
///
/// Version 1, of earlier releases: key := key file; the acceptor answers the challenge with 02 at once, and proves first, so that any stranger
/// could try keys at leisure. Only with LinkIdentity::old_handshake, or without a key file:
///   > 01 (version 1)   < 02 (proof over "acceptor" ...)   > 03 (proof over "dialler" || challenge body || answer body without its proof)   < verdict
// clang-format on
namespace mayfly {

/// The purpose of a dialled connection: a stream of messages, one question, or files of a copy.
enum class LinkPurpose : uint8_t { kStream = 1, kProbe = 2, kFetch = 3 };

inline constexpr int kKeyRounds = 200'000;
/// How long a connection may take to be made and to be greeted, together.
inline constexpr int64_t kLinkHandshakeMs = 5000;

/// The key that members prove with, from what the key file has; empty for an empty one. Takes about
/// a tenth of a second the first time, and is remembered. Any thread.
std::string MemberKey(const std::string& key_file);

/// This node's description of itself.
struct LinkIdentity {
  NodeId node = 0;
  std::string set_name, set_id, address;
  std::string key;  ///< the first key of the key file: version 1 alone
  /// MemberKey of each accepted key; an empty one: nodes without a key are accepted.
  std::vector<std::string> link_keys;
  bool has_data = false;
  bool old_handshake = false;  ///< version 1 is spoken with those who know no other
  /// Decides whether others are dialled with TLS, and recognises certificates; null: no TLS, no
  /// certificates.
  Tls* tls = nullptr;
  bool speaks_old() const {
    return old_handshake || (link_keys.size() == 1 && link_keys[0].empty());
  }
  /// Whether this member proves who it is by its certificate, not by the key (clusterAuthMode).
  bool shows_certificate() const;
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
  explicit MemberLink(ByteStream stream);
  ~MemberLink();
  MemberLink(const MemberLink&) = delete;

  ByteStream& stream() { return stream_; }
  /// Bytes that were read before the link was made.
  void Unread(std::string_view bytes) { in_.append(bytes); }
  void Close();
  /// From now on the link closes itself, and what waits on it fails with HostUnreachable, when
  /// nothing has come for `ms` (up to a quarter more) although somebody waits for it, nor a part of
  /// what is being sent has gone. The time that this process did not run does not count.
  void CloseAfterSilence(int64_t ms);

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
  /// `version`: of the handshake. Both take kLinkHandshakeMs at most if the link is told so by
  /// CloseAfterSilence or by whoever made it.
  LinkTask<Result<LinkPeer>> Dial(LinkIdentity self, LinkPurpose purpose, NodeId wanted,
                                  uint8_t version = 2);
  /// Encrypts a fresh connection to `host`. Errors: HostUnreachable 6.
  LinkTask<Result<void>> StartTls(const Tls& tls, std::string host);
  /// Asks the server behind a fresh connection to `address` for the member stream.
  LinkTask<Result<void>> AskForStream(const std::string& address);
  /// `admit`: whether to accept a node that has the key; its error is sent and is the result.
  LinkTask<Result<LinkPeer>> Accept(LinkIdentity self,
                                    std::function<Result<void>(const LinkPeer&)> admit = {});

 private:
  struct Guard;
  LinkTask<Result<void>> Fill(size_t size);
  LinkTask<Result<void>> Prove(const LinkIdentity& self, const std::string& challenge,
                               const std::string& nonce);
  /// Why a dialler with this challenge is refused at once; none: it is not.
  std::optional<Error> RefusedAtOnce(const LinkIdentity& self, uint8_t version) const;
  /// The other side's certificate is a member's. Errors: AuthenticationFailed 18.
  Result<void> CheckCertificate(const Tls& tls) const;
  /// The acceptor's objection to a proven member, if any.
  static std::optional<Error> Objection(const LinkIdentity& self, const LinkPeer& peer,
                                        NodeId wanted);
  LinkTask<Result<void>> Refuse(const Error& why);
  static void Watch(std::shared_ptr<Guard> guard);
  Error Ended(const boost::system::error_code& ec) const;
  void SetKeys(const std::string& key, std::string_view nonces, bool dialler);

  ByteStream stream_;
  std::string in_, out_;
  size_t in_used_ = 0;
  std::string read_key_, write_key_;  ///< empty: frames are not signed
  uint64_t read_number_ = 0, write_number_ = 0;
  std::shared_ptr<Guard> guard_;
};

/// A link that is greeted.
struct MadeLink {
  std::shared_ptr<MemberLink> link;
  LinkPeer peer;
};
/// Opens a connection to host:port (names are resolved), asks for the member stream and greets:
/// what follows are frames. Ends within kLinkHandshakeMs (twice that where the old handshake is
/// tried as well; a resolver that hangs may take longer), whatever the other side does or does not do.
LinkTask<Result<MadeLink>> MakeLink(std::string address, LinkIdentity self, LinkPurpose purpose,
                                    NodeId wanted);

/// `host:port`, `[v6]:port`, or a host alone (port 27017).
bool SplitAddress(std::string_view address, std::string* host, std::string* port);

}  // namespace mayfly
