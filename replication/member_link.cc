#include "replication/member_link.h"

#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstring>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "replication/byte_text.h"

namespace mayfly {
namespace asio = boost::asio;
namespace {

constexpr asio::use_awaitable_t<LinkExecutor> kAwait;
constexpr size_t kMacSize = 16, kNonceSize = 32, kProofSize = 32;
constexpr uint8_t kVersion = 1;
constexpr size_t kMaxHandshake = 4096;
constexpr size_t kKeepBytes =
    1280 << 10;  ///< a message of the usual largest size; the memory for larger ones is given back
enum : uint8_t { kChallenge = 1, kAnswer = 2, kProof = 3, kRefusal = 4 };

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

Error Ended(const boost::system::error_code& ec) {
  return {ErrorCode::kHostUnreachable, "the connection ended: " + ec.message()};
}
Error Malformed() {
  return {ErrorCode::kProtocolError, "bytes on the member connection that no member sends"};
}
Error OtherKey() {
  return {ErrorCode::kAuthenticationFailed,
          "the members have different key files: give every member the same --keyFile"};
}

}  // namespace

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
  socket_.shutdown(asio::socket_base::shutdown_both, ec);
  socket_.close(ec);
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
  if (in_.capacity() > 2 * kKeepBytes && room <= kKeepBytes) {
    std::string smaller;
    smaller.reserve(kKeepBytes);
    in_.swap(smaller.append(in_));
  }
  in_.resize(room);
  for (;;) {
    auto [ec, n] = co_await socket_.async_read_some(asio::buffer(in_.data() + have, room - have),
                                                    asio::as_tuple(kAwait));
    have += n;
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
  if (size < 1 + mac || size > max + kMacSize + 1) co_return Malformed();
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
  for (size_t sent = 0; sent < sending.size();) {
    auto [ec, n] = co_await socket_.async_write_some(
        asio::buffer(sending.data() + sent, sending.size() - sent), asio::as_tuple(kAwait));
    if (ec) co_return Ended(ec);
    sent += n;
    if (moved && sent < sending.size()) moved();
  }
  if (out_.empty() && sending.capacity() <= (1 << 20)) {
    sending.clear();
    out_ = std::move(sending);  // its memory
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

LinkTask<Result<LinkPeer>> MemberLink::Dial(LinkIdentity self, LinkPurpose purpose, NodeId wanted) {
  std::string challenge(1, static_cast<char>(kVersion));
  challenge.push_back(static_cast<char>(purpose));
  std::string nonce(kNonceSize, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceSize) != 1)
    co_return Error{ErrorCode::kInternalError, "no random bytes"};
  challenge += nonce;
  AppendNumber(challenge, self.node);
  AppendNumber(challenge, wanted);
  AppendText(challenge, self.set_name);
  AppendText(challenge, self.set_id);
  AppendText(challenge, self.address);
  Add(kChallenge, challenge);
  MAYFLY_CO_TRY(co_await Flush());

  MAYFLY_CO_TRY(Frame frame, co_await Read(kMaxHandshake));
  std::string_view in = frame.body;
  if (frame.type == kRefusal) {
    uint32_t code = 0;
    std::string why;
    if (!TakeNumber(&in, &code) || !TakeText(&in, &why)) co_return Malformed();
    co_return Error{static_cast<ErrorCode>(code), why};
  }
  LinkPeer peer;
  std::string_view their_nonce, proof;
  uint8_t has_data = 0;
  if (frame.type != kAnswer || frame.body.size() < kProofSize) co_return Malformed();
  const std::string answer(frame.body.substr(0, frame.body.size() - kProofSize));
  if (!TakeBytes(&in, kNonceSize, &their_nonce) || !TakeNumber(&in, &peer.info.id) ||
      !TakeNumber(&in, &has_data) || !TakeText(&in, &peer.info.set_name) ||
      !TakeText(&in, &peer.info.set_id) || !TakeBytes(&in, kProofSize, &proof) || !in.empty())
    co_return Malformed();
  peer.info.has_data = has_data != 0;
  peer.purpose = purpose;
  if (!Same(proof, Hmac(self.key, {"acceptor", challenge, answer}))) co_return OtherKey();
  const std::string nonces = nonce + std::string(their_nonce);
  Add(kProof, Hmac(self.key, {"dialler", challenge, answer}));
  SetKeys(self.key, nonces, true);
  MAYFLY_CO_TRY(co_await Flush());
  // The acceptor's verdict, signed already.
  MAYFLY_CO_TRY(Frame verdict, co_await Read(kMaxHandshake));
  if (verdict.type == kRefusal) {
    std::string_view text = verdict.body;
    uint32_t code = 0;
    std::string why;
    if (!TakeNumber(&text, &code) || !TakeText(&text, &why)) co_return Malformed();
    co_return Error{static_cast<ErrorCode>(code), why};
  }
  if (verdict.type != kProof) co_return Malformed();
  co_return peer;
}

LinkTask<Result<LinkPeer>> MemberLink::Accept(LinkIdentity self,
                                              std::function<Result<void>(const LinkPeer&)> admit) {
  MAYFLY_CO_TRY(Frame frame, co_await Read(kMaxHandshake));
  if (frame.type != kChallenge) co_return Malformed();
  const std::string challenge(frame.body);
  std::string_view in = challenge, their_nonce;
  LinkPeer peer;
  uint8_t version = 0, purpose = 0;
  NodeId wanted = 0;
  if (!TakeNumber(&in, &version) || version != kVersion || !TakeNumber(&in, &purpose) ||
      !TakeBytes(&in, kNonceSize, &their_nonce) || !TakeNumber(&in, &peer.info.id) ||
      !TakeNumber(&in, &wanted) || !TakeText(&in, &peer.info.set_name) ||
      !TakeText(&in, &peer.info.set_id) || !TakeText(&in, &peer.address) || !in.empty() ||
      purpose < 1 || purpose > 3)
    co_return Malformed();
  peer.purpose = static_cast<LinkPurpose>(purpose);

  std::string answer(kNonceSize, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(answer.data()), kNonceSize) != 1)
    co_return Error{ErrorCode::kInternalError, "no random bytes"};
  const std::string nonces = std::string(their_nonce) + answer;
  AppendNumber(answer, self.node);
  answer.push_back(self.has_data ? 1 : 0);
  AppendText(answer, self.set_name);
  AppendText(answer, self.set_id);
  Add(kAnswer, answer, Hmac(self.key, {"acceptor", challenge, answer}));
  MAYFLY_CO_TRY(co_await Flush());
  MAYFLY_CO_TRY(Frame proof, co_await Read(kMaxHandshake));
  if (proof.type != kProof || !Same(proof.body, Hmac(self.key, {"dialler", challenge, answer}))) {
    std::string text;
    AppendNumber(text, static_cast<uint32_t>(ErrorCode::kAuthenticationFailed));
    AppendText(text, OtherKey().message);
    Add(kRefusal, text);
    MAYFLY_CO_TRY(co_await Flush());
    co_return OtherKey();
  }
  SetKeys(self.key, nonces, false);
  std::optional<Error> refuse;
  if (peer.info.set_name != self.set_name && peer.purpose != LinkPurpose::kProbe)
    refuse = Error{ErrorCode::kInvalidReplicaSetConfig,
                   "this member is of the set " + self.set_name + ", not " + peer.info.set_name};
  else if (!peer.info.set_id.empty() && !self.set_id.empty() && peer.info.set_id != self.set_id &&
           peer.purpose != LinkPurpose::kProbe)
    refuse = Error{ErrorCode::kInvalidReplicaSetConfig,
                   "this member belongs to another set of the same name"};
  else if (wanted != 0 && wanted != self.node)
    refuse = Error{ErrorCode::kNodeNotFound,
                   std::string("another node lives at this address: its data directory is not the "
                               "one that joined the set") +
                       (self.set_id.empty() ? ""
                                            : "; it is a copy of another member's: empty it, and "
                                              "this member gets its own from the set")};
  if (!refuse && admit) {
    Result<void> admitted = admit(peer);
    if (!admitted) refuse = admitted.error();
  }
  if (refuse) {
    std::string text;
    AppendNumber(text, static_cast<uint32_t>(refuse->code));
    AppendText(text, refuse->message);
    Add(kRefusal, text);
    MAYFLY_CO_TRY(co_await Flush());
    co_return *refuse;
  }
  Add(kProof, {});
  MAYFLY_CO_TRY(co_await Flush());
  co_return peer;
}

LinkTask<Result<std::unique_ptr<MemberLink>>> OpenLink(std::string address) {
  std::string host, port;
  if (!SplitAddress(address, &host, &port))
    co_return Error{ErrorCode::kFailedToParse, "'" + address + "' is not host:port"};
  auto executor = co_await asio::this_coro::executor;
  asio::ip::basic_resolver<asio::ip::tcp, LinkExecutor> resolver(executor);
  auto [unknown, found] = co_await resolver.async_resolve(host, port, asio::as_tuple(kAwait));
  if (unknown)
    co_return Error{ErrorCode::kHostNotFound, "cannot resolve " + host + ": " + unknown.message()};
  asio::basic_stream_socket<asio::ip::tcp, LinkExecutor> socket(executor);
  auto [failed, endpoint] = co_await asio::async_connect(socket, found, asio::as_tuple(kAwait));
  if (failed)
    co_return Error{ErrorCode::kHostUnreachable,
                    "cannot connect to " + address + ": " + failed.message()};
  boost::system::error_code ec;
  socket.set_option(asio::ip::tcp::no_delay(true), ec);
  // A member that has vanished does not keep what is sent to it waiting.
  const unsigned silent_ms = 5000;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
  auto link = std::make_unique<MemberLink>(LinkSocket(std::move(socket)));

  const BsonDocument body = BuildBson(
      [](BsonBuilder& b) { b.Append("_mayflyMember", int32_t{1}).Append("$db", "admin"); });
  std::string message;
  for (int32_t v : {static_cast<int32_t>(21 + body.view().size()), 1, 0, 2013, 0})
    AppendNumber(message, v);
  message.push_back('\0');
  message.append(body.view().data(), body.view().size());
  auto [write_failed, sent] =
      co_await asio::async_write(link->socket(), asio::buffer(message), asio::as_tuple(kAwait));
  if (write_failed) co_return Ended(write_failed);
  std::array<char, 4> head;
  auto [read_failed, n] =
      co_await asio::async_read(link->socket(), asio::buffer(head), asio::as_tuple(kAwait));
  if (read_failed) co_return Ended(read_failed);
  int32_t size = 0;
  std::memcpy(&size, head.data(), 4);
  if (size < 26 || size > 64 << 10) co_return Malformed();
  std::string reply(static_cast<size_t>(size) - 4, '\0');
  auto [rest_failed, m] =
      co_await asio::async_read(link->socket(), asio::buffer(reply), asio::as_tuple(kAwait));
  if (rest_failed) co_return Ended(rest_failed);
  int32_t doc_size = 0;
  std::memcpy(&doc_size, reply.data() + 17, 4);
  if (doc_size < 5 || static_cast<size_t>(doc_size) > reply.size() - 17) co_return Malformed();
  if (!ValidateBson(std::string_view(reply).substr(17, static_cast<size_t>(doc_size))))
    co_return Malformed();
  const BsonView doc(reply.data() + 17);
  bool ok = false;
  std::string why = "it is not a member of a replica set";
  for (const BsonElement& e : doc) {
    if (e.name == "ok" && e.value.IsNumber()) ok = e.value.NumberAsDouble() == 1;
    if (e.name == "errmsg" && e.value.IsString()) why = e.value.String();
  }
  if (!ok) co_return Error{ErrorCode::kNoReplicationEnabled, address + ": " + why};
  co_return link;
}

}  // namespace mayfly
