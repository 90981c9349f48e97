#include "replication/member_link.h"

#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "replication/byte_text.h"
#include "security/tls.h"

namespace mayfly {
namespace asio = boost::asio;
namespace {

constexpr size_t kMacSize = 16, kNonceSize = 32, kProofSize = 32;
constexpr uint8_t kOldVersion = 1, kVersion = 2, kByCertificate = 3;
/// How often a link is checked within the time that it may be silent.
constexpr int kSilenceParts = 4;
constexpr size_t kMaxKeys = 8;  ///< remembered by MemberKey
constexpr size_t kMaxHandshake = 4096;
constexpr size_t kTlsTurn = 256 << 10;  ///< bytes encrypted before other connections get a turn
constexpr size_t kKeepMessageBytes =
    1280 << 10;  ///< the usual largest message; memory for larger ones is freed after use
/// Dial reports this when the other member ends the connection at the new handshake, as an earlier
/// version does. MakeLink turns it into HostUnreachable.
constexpr ErrorCode kEndedEarly = ErrorCode::kIncompatibleElectionProtocol;
enum : uint8_t { kChallenge = 1, kAnswer = 2, kProof = 3, kRefusal = 4, kNonce = 5 };

std::string Hmac(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view p : parts) text.append(p);
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), out, &n);
  return {reinterpret_cast<char*>(out), n};
}

void AppendText(std::string& out, std::string_view s) {
  AppendNumber(out, static_cast<uint16_t>(s.size()));
  out.append(s);
}
bool TakeText(std::string_view* in, std::string* s) {
  uint16_t n = 0;
  if (!TakeNumber(in, &n) || in->size() < n) return false;
  *s = in->substr(0, n);
  in->remove_prefix(n);
  return true;
}
bool TakeBytes(std::string_view* in, size_t n, std::string_view* out) {
  if (in->size() < n) return false;
  *out = in->substr(0, n);
  in->remove_prefix(n);
  return true;
}
bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Error MalformedMessage() {
  return {ErrorCode::kProtocolError, "bytes on the member connection that no member sends"};
}
Error OtherKey() {
  return {ErrorCode::kAuthenticationFailed,
          "the members have different key files: give every member the same --keyFile"};
}
/// The first of `keys` that one of the dialler's proofs is made with; null: none.
const std::string* KeyInCommon(const std::vector<std::string>& keys, std::string_view proofs,
                               const std::string& challenge, const std::string& nonce) {
  if (proofs.size() % kProofSize != 0 || proofs.size() > (kMaxMemberKeys + 1) * kProofSize)
    return nullptr;
  for (const std::string& key : keys) {
    const std::string expected = Hmac(key, {"dialler 2", challenge, nonce});
    for (size_t at = 0; at < proofs.size(); at += kProofSize)
      if (Same(proofs.substr(at, kProofSize), expected)) return &key;
  }
  return nullptr;
}
/// The reason of a refusal.
Error ReadRefusal(std::string_view body) {
  uint32_t code = 0;
  std::string why;
  if (!TakeNumber(&body, &code) || !TakeText(&body, &why)) return MalformedMessage();
  return {static_cast<ErrorCode>(code), why};
}
bool RandomNonce(std::string* out) {
  out->assign(kNonceSize, '\0');
  return RAND_bytes(reinterpret_cast<unsigned char*>(out->data()), kNonceSize) == 1;
}
Error NoRandom() { return {ErrorCode::kInternalError, "no random bytes"}; }

}  // namespace

std::string MemberKey(const std::string& key_file) {
  if (key_file.empty()) return {};
  static std::mutex mutex;
  static std::map<std::string, std::string> known;
  std::lock_guard l(mutex);
  if (auto it = known.find(key_file); it != known.end()) return it->second;
  static constexpr std::string_view kSalt = "mayfly member link 2";
  std::string out(kProofSize, '\0');
  if (PKCS5_PBKDF2_HMAC(key_file.data(), static_cast<int>(key_file.size()),
                        reinterpret_cast<const unsigned char*>(kSalt.data()),
                        static_cast<int>(kSalt.size()), kKeyRounds, EVP_sha256(),
                        static_cast<int>(out.size()),
                        reinterpret_cast<unsigned char*>(out.data())) != 1)
    return {};
  if (known.size() >= kMaxKeys) known.clear();
  known[key_file] = out;
  return out;
}

/// Closes a link that is silent. If its timer is still to run, it outlives the link.
struct MemberLink::Guard {
  Guard(LinkExecutor executor, MemberLink* link) : timer(executor), link(link) {}
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, LinkExecutor>
      timer;
  MemberLink* link;
  std::chrono::milliseconds part{0};
  int waiting = 0;  ///< reads and writes in progress
  int quiet = 0;    ///< checks in a row that found no progress
  bool moved = true, silent = false, watching = false;

  struct Wait {
    explicit Wait(std::shared_ptr<Guard> guard) : g(std::move(guard)) {
      if (g->waiting++ == 0) g->moved = true;
    }
    ~Wait() { --g->waiting; }
    Wait(const Wait&) = delete;
    const std::shared_ptr<Guard> g;
  };
};

MemberLink::MemberLink(ByteStream stream)
    : stream_(std::move(stream)),
      guard_(std::make_shared<Guard>(stream_.socket().get_executor(), this)) {}

MemberLink::~MemberLink() {
  guard_->link = nullptr;
  guard_->timer.cancel();
}

void MemberLink::CloseAfterSilence(int64_t ms) {
  guard_->part = std::chrono::milliseconds(std::max<int64_t>(ms / kSilenceParts, 1));
  if (!std::exchange(guard_->watching, true)) Watch(guard_);
}

void MemberLink::Watch(std::shared_ptr<Guard> guard) {
  Guard& g = *guard;
  g.timer.expires_after(g.part);
  g.timer.async_wait([guard = std::move(guard)](boost::system::error_code ec) {
    Guard& g = *guard;
    if (ec || g.link == nullptr || !g.link->stream_.socket().is_open()) return;
    if (std::exchange(g.moved, false) || g.waiting == 0)
      g.quiet = 0;
    else if (++g.quiet >= kSilenceParts) {
      g.silent = true;
      g.link->Close();
      return;
    }
    Watch(guard);
  });
}

Error MemberLink::Ended(const boost::system::error_code& ec) const {
  if (guard_->silent) return {ErrorCode::kHostUnreachable, "it is connected and does not answer"};
  return {ErrorCode::kHostUnreachable, "the connection ended: " + ec.message()};
}

bool SplitAddress(std::string_view address, std::string* host, std::string* port) {
  *port = "27017";
  if (address.starts_with('[')) {
    const size_t end = address.find(']');
    if (end == std::string_view::npos) return false;
    *host = address.substr(1, end - 1);
    address.remove_prefix(end + 1);
    if (address.empty()) return !host->empty();
    if (address[0] != ':') return false;
    *port = address.substr(1);
  } else {
    const size_t colon = address.rfind(':');
    *host = address.substr(0, colon);
    if (colon != std::string_view::npos) *port = address.substr(colon + 1);
  }
  return !host->empty() && !port->empty() && port->size() <= 5 &&
         port->find_first_not_of("0123456789") == std::string::npos;
}

void MemberLink::Close() {
  boost::system::error_code ec;
  stream_.socket().shutdown(asio::socket_base::shutdown_both, ec);
  stream_.socket().close(ec);
}

void MemberLink::TakeKeys(MemberLink& other) {
  in_ = other.in_.substr(other.in_used_);
  in_used_ = 0;
  read_key_ = other.read_key_;
  write_key_ = other.write_key_;
  read_number_ = other.read_number_;
  write_number_ = other.write_number_;
}

LinkTask<Result<void>> MemberLink::Fill(size_t size) {
  if (in_.size() - in_used_ >= size) co_return Ok();
  in_.erase(0, in_used_);
  in_used_ = 0;
  size_t have = in_.size();
  const size_t room = std::max<size_t>(size, 64 << 10);
  if (in_.capacity() > 2 * kKeepMessageBytes && room <= kKeepMessageBytes) {
    std::string smaller;
    smaller.reserve(kKeepMessageBytes);
    in_.swap(smaller.append(in_));
  }
  in_.resize(room);
  const Guard::Wait wait(guard_);
  for (;;) {
    boost::system::error_code ec;
    size_t n = 0;
    if (stream_.encrypted()) {
      const ByteStream::Came came = co_await stream_.ReadTls(in_.data() + have, room - have);
      ec = came.error;
      n = came.bytes;
    } else {
      std::tie(ec, n) = co_await stream_.socket().async_read_some(
          asio::buffer(in_.data() + have, room - have), asio::as_tuple(kLinkAwait));
    }
    have += n;
    guard_->moved = true;
    if (!ec && have < size) {
      if (moved) moved();
      continue;
    }
    in_.resize(have);
    if (ec) co_return Ended(ec);
    co_return Ok();
  }
}

LinkTask<Result<MemberLink::Frame>> MemberLink::Read(size_t max) {
  MAYFLY_CO_TRY(co_await Fill(4));
  uint32_t size = 0;
  std::memcpy(&size, in_.data() + in_used_, 4);
  const size_t mac = read_key_.empty() ? 0 : kMacSize;
  if (size < 1 + mac || size > max + kMacSize + 1) co_return MalformedMessage();
  MAYFLY_CO_TRY(co_await Fill(4 + size_t{size}));
  std::string_view frame(in_.data() + in_used_, 4 + size_t{size});
  in_used_ += frame.size();
  if (mac) {
    const std::string_view number(reinterpret_cast<const char*>(&read_number_), 8);
    const std::string_view text = frame.substr(0, frame.size() - mac);
    if (!Same(std::string_view(Hmac(read_key_, {number, text})).substr(0, mac),
              frame.substr(text.size())))
      co_return Error{ErrorCode::kAuthenticationFailed,
                      "a frame on the member connection was changed or put in on its way"};
    ++read_number_;
    frame = text;
  }
  co_return Frame{static_cast<uint8_t>(frame[4]), frame.substr(5)};
}

void MemberLink::Add(uint8_t type, std::string_view body, std::string_view more) {
  const size_t mac = write_key_.empty() ? 0 : kMacSize, begin = out_.size();
  AppendNumber(out_, static_cast<uint32_t>(1 + body.size() + more.size() + mac));
  out_.push_back(static_cast<char>(type));
  out_.append(body).append(more);
  if (mac) {
    const std::string_view number(reinterpret_cast<const char*>(&write_number_), 8);
    out_.append(Hmac(write_key_, {number, std::string_view(out_).substr(begin)}), 0, mac);
    ++write_number_;
  }
}

LinkTask<Result<void>> MemberLink::Flush() {
  std::string sending = std::move(out_);
  out_.clear();
  const Guard::Wait wait(guard_);
  for (size_t sent = 0; sent < sending.size();) {
    boost::system::error_code ec;
    size_t n = 0;
    if (stream_.encrypted()) {
      n = stream_.WriteSome(sending.data() + sent, sending.size() - sent, ec);
      // Other connections of this thread get their turn in between, even if the socket accepts
      // everything at once.
      if (ec == asio::error::would_block)
        ec = co_await stream_.WaitFor(TlsSession::Outcome::kWantWrite);
      else if (!ec && sent + n < sending.size() && sent / kTlsTurn != (sent + n) / kTlsTurn)
        co_await asio::post(asio::bind_executor(stream_.socket().get_executor(), kLinkAwait));
    } else {
      std::tie(ec, n) = co_await stream_.socket().async_write_some(
          asio::buffer(sending.data() + sent, sending.size() - sent), asio::as_tuple(kLinkAwait));
    }
    if (ec) co_return Ended(ec);
    sent += n;
    if (sent < sending.size()) {
      guard_->moved = true;
      if (moved) moved();
    }
  }
  if (out_.empty() && sending.capacity() <= (1 << 20)) {
    sending.clear();
    out_ = std::move(sending);  // its memory is reused
  }
  co_return Ok();
}

void MemberLink::SetKeys(const std::string& key, std::string_view nonces, bool dialler) {
  if (key.empty()) return;
  const std::string ours = Hmac(key, {"frames of the dialler", nonces});
  const std::string theirs = Hmac(key, {"frames of the acceptor", nonces});
  write_key_ = dialler ? ours : theirs;
  read_key_ = dialler ? theirs : ours;
}

LinkTask<Result<void>> MemberLink::Prove(const LinkIdentity& self, const std::string& challenge,
                                         const std::string& nonce) {
  auto read = co_await Read(kMaxHandshake);
  // A member of an earlier version closes the connection when it receives a handshake that it does
  // not know.
  if (!read && read.error().code == ErrorCode::kHostUnreachable && !guard_->silent)
    co_return Error{kEndedEarly,
                    read.error().message +
                        " before it greeted (a member of an earlier version does that: see "
                        "allowOldMemberHandshake)"};
  if (!read) co_return read.error();
  const Frame frame = read.value();
  if (frame.type == kRefusal) co_return ReadRefusal(frame.body);
  if (frame.type != kNonce || frame.body.size() != kNonceSize || frame.body == nonce)
    co_return MalformedMessage();
  std::string proofs;
  for (const std::string& key : self.link_keys)
    proofs += Hmac(key, {"dialler 2", challenge, frame.body});
  Add(kProof, proofs);
  co_return co_await Flush();
}

LinkTask<Result<LinkPeer>> MemberLink::Dial(LinkIdentity self, LinkPurpose purpose, NodeId wanted,
                                            uint8_t version) {
  if (version == kByCertificate) {
    MAYFLY_CO_TRY(CheckCertificate(*self.tls));
  }
  std::string challenge(1, static_cast<char>(version)), nonce;
  challenge.push_back(static_cast<char>(purpose));
  if (!RandomNonce(&nonce)) co_return NoRandom();
  challenge += nonce;
  AppendNumber(challenge, self.node);
  AppendNumber(challenge, wanted);
  AppendText(challenge, self.set_name);
  AppendText(challenge, self.set_id);
  AppendText(challenge, self.address);
  Add(kChallenge, challenge);
  MAYFLY_CO_TRY(co_await Flush());
  if (version == kVersion) {
    MAYFLY_CO_TRY(co_await Prove(self, challenge, nonce));
  }

  MAYFLY_CO_TRY(Frame frame, co_await Read(kMaxHandshake));
  std::string_view in = frame.body;
  if (frame.type == kRefusal) co_return ReadRefusal(in);
  LinkPeer peer;
  std::string_view their_nonce, proof;
  uint8_t has_data = 0;
  if (frame.type != kAnswer || frame.body.size() < kProofSize) co_return MalformedMessage();
  const std::string answer(frame.body.substr(0, frame.body.size() - kProofSize));
  if (!TakeBytes(&in, kNonceSize, &their_nonce) || !TakeNumber(&in, &peer.info.id) ||
      !TakeNumber(&in, &has_data) || !TakeText(&in, &peer.info.set_name) ||
      !TakeText(&in, &peer.info.set_id) || !TakeBytes(&in, kProofSize, &proof) || !in.empty())
    co_return MalformedMessage();
  peer.info.has_data = has_data != 0;
  peer.purpose = purpose;
  const std::string nonces = nonce + std::string(their_nonce);
  if (version == kOldVersion) {
    if (!Same(proof, Hmac(self.key, {"acceptor", challenge, answer}))) co_return OtherKey();
    Add(kProof, Hmac(self.key, {"dialler", challenge, answer}));
    SetKeys(self.key, nonces, true);
  } else if (version == kVersion) {
    const std::string* common = nullptr;
    for (const std::string& key : self.link_keys)
      if (common == nullptr && Same(proof, Hmac(key, {"acceptor 2", challenge, answer})))
        common = &key;
    if (common == nullptr) co_return OtherKey();
    SetKeys(*common, nonces, true);
  }
  MAYFLY_CO_TRY(co_await Flush());
  // The verdict of the accepting side. It is signed already.
  MAYFLY_CO_TRY(Frame verdict, co_await Read(kMaxHandshake));
  if (verdict.type == kRefusal) co_return ReadRefusal(verdict.body);
  if (verdict.type != kProof) co_return MalformedMessage();
  co_return peer;
}

LinkTask<Result<void>> MemberLink::Refuse(const Error& why) {
  std::string text;
  AppendNumber(text, static_cast<uint32_t>(why.code));
  AppendText(text, why.message);
  Add(kRefusal, text);
  co_return co_await Flush();
}

LinkTask<Result<LinkPeer>> MemberLink::Accept(LinkIdentity self,
                                              std::function<Result<void>(const LinkPeer&)> admit) {
  MAYFLY_CO_TRY(Frame frame, co_await Read(kMaxHandshake));
  if (frame.type != kChallenge) co_return MalformedMessage();
  const std::string challenge(frame.body);
  std::string_view in = challenge, their_nonce;
  LinkPeer peer;
  uint8_t version = 0, purpose = 0;
  NodeId wanted = 0;
  if (!TakeNumber(&in, &version) || !TakeNumber(&in, &purpose) ||
      !TakeBytes(&in, kNonceSize, &their_nonce) || !TakeNumber(&in, &peer.info.id) ||
      !TakeNumber(&in, &wanted) || !TakeText(&in, &peer.info.set_name) ||
      !TakeText(&in, &peer.info.set_id) || !TakeText(&in, &peer.address) || !in.empty() ||
      purpose < 1 || purpose > 3 || version < kOldVersion || version > kByCertificate)
    co_return MalformedMessage();
  peer.purpose = static_cast<LinkPurpose>(purpose);
  if (const std::optional<Error> why = RefusedAtOnce(self, version)) {
    MAYFLY_CO_TRY(co_await Refuse(*why));
    co_return *why;
  }

  std::string nonce;
  if (!RandomNonce(&nonce)) co_return NoRandom();
  const std::string nonces = std::string(their_nonce) + nonce;
  std::string answer = nonce;
  AppendNumber(answer, self.node);
  answer.push_back(self.has_data ? 1 : 0);
  AppendText(answer, self.set_name);
  AppendText(answer, self.set_id);
  if (version == kByCertificate) {
    Add(kAnswer, answer, std::string(kProofSize, '\0'));
  } else {
    const bool old = version == kOldVersion;
    // Nothing that is derived from the key is sent to a peer that has not proven that it has it.
    if (old)
      Add(kAnswer, answer, Hmac(self.key, {"acceptor", challenge, answer}));
    else
      Add(kNonce, nonce);
    MAYFLY_CO_TRY(co_await Flush());
    MAYFLY_CO_TRY(Frame proof, co_await Read(kMaxHandshake));
    const std::string* common = nullptr;
    if (proof.type == kProof && old) {
      if (Same(proof.body, Hmac(self.key, {"dialler", challenge, answer}))) common = &self.key;
    } else if (proof.type == kProof) {
      common = KeyInCommon(self.link_keys, proof.body, challenge, nonce);
    }
    if (common == nullptr) {
      MAYFLY_CO_TRY(co_await Refuse(OtherKey()));
      co_return OtherKey();
    }
    if (!old) Add(kAnswer, answer, Hmac(*common, {"acceptor 2", challenge, answer}));
    SetKeys(*common, nonces, false);
  }
  std::optional<Error> refuse = Objection(self, peer, wanted);
  if (!refuse && admit) {
    Result<void> admitted = admit(peer);
    if (!admitted) refuse = admitted.error();
  }
  if (refuse) {
    MAYFLY_CO_TRY(co_await Refuse(*refuse));
    co_return *refuse;
  }
  Add(kProof, {});
  MAYFLY_CO_TRY(co_await Flush());
  co_return peer;
}

std::optional<Error> MemberLink::Objection(const LinkIdentity& self, const LinkPeer& peer,
                                           NodeId wanted) {
  const bool probe = peer.purpose == LinkPurpose::kProbe;
  if (peer.info.set_name != self.set_name && !probe)
    return Error{ErrorCode::kInvalidReplicaSetConfig,
                 "this member is of the set " + self.set_name + ", not " + peer.info.set_name};
  if (!peer.info.set_id.empty() && !self.set_id.empty() && peer.info.set_id != self.set_id &&
      !probe)
    return Error{ErrorCode::kInvalidReplicaSetConfig,
                 "this member belongs to another set of the same name"};
  if (wanted != 0 && wanted != self.node)
    return Error{ErrorCode::kNodeNotFound,
                 std::string("another node lives at this address: its data directory is not the "
                             "one that joined the set") +
                     (self.set_id.empty() ? ""
                                          : "; it is a copy of another member's: empty it, and "
                                            "this member gets its own from the set")};
  return {};
}

bool LinkIdentity::shows_certificate() const {
  return tls != nullptr && ShowsCertificate(tls->cluster_auth());
}

Result<void> MemberLink::CheckCertificate(const Tls& tls) const {
  if (stream_.encrypted() && tls.IsMember(stream_.tls()->peer())) return Ok();
  return Error{ErrorCode::kAuthenticationFailed,
               !stream_.encrypted() ? "the connection has no TLS, so it shows no certificate"
               : stream_.tls()->peer().subject.empty()
                   ? "the other side has shown no certificate that this member trusts"
                   : "the certificate " + stream_.tls()->peer().subject +
                         " is not a member's: its O, OU and DC are not those of this member's own"};
}

std::optional<Error> MemberLink::RefusedAtOnce(const LinkIdentity& self, uint8_t version) const {
  const ClusterAuthMode mode =
      self.tls != nullptr ? self.tls->cluster_auth() : ClusterAuthMode::kKeyFile;
  if (version == kByCertificate) {
    if (!TakesCertificates(mode))
      return Error{ErrorCode::kAuthenticationFailed,
                   "this member takes key files only (clusterAuthMode keyFile), and the other one "
                   "has shown a certificate"};
    const Result<void> member = CheckCertificate(*self.tls);
    return member ? std::optional<Error>() : member.error();
  }
  if (!TakesKeys(mode))
    return Error{ErrorCode::kAuthenticationFailed,
                 "this member takes certificates only (clusterAuthMode x509), and the other one "
                 "has a key file"};
  if (version == kOldVersion && !self.speaks_old())
    return Error{ErrorCode::kAuthenticationFailed,
                 "a member of an earlier version asks for proof before it has proved itself: "
                 "upgrade it, or set allowOldMemberHandshake until every member is upgraded"};
  return {};
}

LinkTask<Result<void>> MemberLink::StartTls(const Tls& tls, std::string host) {
  boost::system::error_code ec;
  stream_.socket().native_non_blocking(true, ec);
  std::unique_ptr<TlsSession> session;
  if (!ec) session = tls.Dial(stream_.socket().native_handle(), host);
  if (!session) co_return Error{ErrorCode::kHostUnreachable, "TLS cannot be set up for " + host};
  stream_.set_tls(std::move(session));
  const Guard::Wait wait(guard_);
  co_return co_await stream_.Handshake();
}

LinkTask<Result<void>> MemberLink::AskForStream(const std::string& address) {
  const BsonDocument body = BuildBson(
      [](BsonBuilder& b) { b.Append("_mayflyMember", int32_t{1}).Append("$db", "admin"); });
  for (int32_t v : {static_cast<int32_t>(21 + body.view().size()), 1, 0, 2013, 0})
    AppendNumber(out_, v);
  out_.push_back('\0');
  out_.append(body.view().data(), body.view().size());
  MAYFLY_CO_TRY(co_await Flush());
  MAYFLY_CO_TRY(co_await Fill(4));
  int32_t size = 0;
  std::memcpy(&size, in_.data() + in_used_, 4);
  if (size < 26 || size > 64 << 10) co_return MalformedMessage();
  MAYFLY_CO_TRY(co_await Fill(static_cast<size_t>(size)));
  const std::string_view reply =
      std::string_view(in_).substr(in_used_ + 21, static_cast<size_t>(size) - 21);
  in_used_ += static_cast<size_t>(size);
  int32_t doc_size = 0;
  std::memcpy(&doc_size, reply.data(), 4);
  if (doc_size < 5 || static_cast<size_t>(doc_size) > reply.size() ||
      !ValidateBson(reply.substr(0, static_cast<size_t>(doc_size))))
    co_return MalformedMessage();
  bool ok = false;
  std::string why = "it is not a member of a replica set";
  for (const BsonElement& e : BsonView(reply.data())) {
    if (e.name == "ok" && e.value.IsNumber()) ok = e.value.NumberAsDouble() == 1;
    if (e.name == "errmsg" && e.value.IsString()) why = e.value.String();
  }
  if (!ok) co_return Error{ErrorCode::kNoReplicationEnabled, address + ": " + why};
  co_return Ok();
}

namespace {

using TcpSocket = asio::basic_stream_socket<asio::ip::tcp, LinkExecutor>;

/// A connection that is being opened, and the timer that limits how long that may take.
struct Making {
  explicit Making(LinkExecutor executor) : timer(executor), resolver(executor), socket(executor) {}
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, LinkExecutor>
      timer;
  asio::ip::basic_resolver<asio::ip::tcp, LinkExecutor> resolver;
  TcpSocket socket;
  std::shared_ptr<MemberLink> link;
  bool late = false, done = false;

  void End() {
    late = true;
    boost::system::error_code ec;
    resolver.cancel();
    socket.close(ec);
    if (link) link->Close();
  }
};

LinkTask<Result<void>> Connect(const std::shared_ptr<Making>& m, const std::string& address) {
  std::string host, port;
  if (!SplitAddress(address, &host, &port))
    co_return Error{ErrorCode::kFailedToParse, "'" + address + "' is not host:port"};
  auto [unknown, found] =
      co_await m->resolver.async_resolve(host, port, asio::as_tuple(kLinkAwait));
  if (m->late) co_return Ok();
  if (unknown)
    co_return Error{ErrorCode::kHostNotFound, "cannot resolve " + host + ": " + unknown.message()};
  // The addresses are tried one after another. async_connect would continue with the next one even
  // after End.
  boost::system::error_code failed = asio::error::host_not_found;
  for (const auto& entry : found) {
    boost::system::error_code ec;
    m->socket.close(ec);
    const asio::ip::tcp::endpoint endpoint = entry.endpoint();
    std::tie(failed) = co_await m->socket.async_connect(endpoint, asio::as_tuple(kLinkAwait));
    if (!failed || m->late) break;
  }
  if (failed && !m->late)
    co_return Error{ErrorCode::kHostUnreachable,
                    "cannot connect to " + address + ": " + failed.message()};
  co_return Ok();
}

LinkTask<Result<MadeLink>> TryLink(std::string address, LinkIdentity self, LinkPurpose purpose,
                                   NodeId wanted, uint8_t version) {
  auto m = std::make_shared<Making>(co_await asio::this_coro::executor);
  m->timer.expires_after(std::chrono::milliseconds(kLinkHandshakeMs));
  m->timer.async_wait([m](boost::system::error_code ec) {
    if (!ec && !m->done) m->End();
  });
  const Error late{ErrorCode::kHostUnreachable, address + " does not answer in time"};
  Result<void> connected = co_await Connect(m, address);
  Result<LinkPeer> greeted = late;
  if (connected && !m->late) {
    boost::system::error_code ec;
    m->socket.set_option(asio::ip::tcp::no_delay(true), ec);
    // Data sent to a member that has vanished must not wait for long.
    const unsigned silent_ms = 5000;
    ::setsockopt(m->socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms,
                 sizeof silent_ms);
    m->link = std::make_shared<MemberLink>(ByteStream(LinkSocket(std::move(m->socket))));
    if (self.tls != nullptr && self.tls->dials()) {
      std::string host, port;
      SplitAddress(address, &host, &port);
      connected = co_await m->link->StartTls(*self.tls, host);
    }
    if (connected) connected = co_await m->link->AskForStream(address);
    if (connected) greeted = co_await m->link->Dial(std::move(self), purpose, wanted, version);
  }
  m->done = true;
  m->timer.cancel();
  std::shared_ptr<MemberLink> link = std::move(m->link);
  if (connected && greeted && !m->late) co_return MadeLink{std::move(link), greeted.value()};
  if (link) link->Close();
  if (m->late) co_return late;
  co_return !connected ? connected.error() : greeted.error();
}

}  // namespace

LinkTask<Result<MadeLink>> MakeLink(std::string address, LinkIdentity self, LinkPurpose purpose,
                                    NodeId wanted) {
  if (self.shows_certificate())
    co_return co_await TryLink(address, self, purpose, wanted, kByCertificate);
  const bool old = self.speaks_old();
  Result<MadeLink> made = co_await TryLink(address, self, purpose, wanted, kVersion);
  if (made || made.error().code != kEndedEarly) co_return made;
  if (old) co_return co_await TryLink(address, self, purpose, wanted, kOldVersion);
  co_return Error{ErrorCode::kHostUnreachable, made.error().message};
}

}  // namespace mayfly
