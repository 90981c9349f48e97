#include "replication/heartbeat.h"

#include <cstring>

namespace mayfly {
namespace {
constexpr size_t kHeartbeatHead = 1 + 8 + 8 + 2 + 8 * 7;
}  // namespace

std::string EncodeHeartbeat(const Heartbeat& h) {
  std::string out(1, '\x01');
  auto put = [&out](auto v) { out.append(reinterpret_cast<const char*>(&v), sizeof v); };
  put(h.stamp_us);
  put(h.wall.millis);
  put(h.role);
  put(static_cast<uint8_t>((h.electable ? 1 : 0) | (h.copying ? 2 : 0) | (h.without_you ? 4 : 0) |
                           (h.works ? 8 : 0)));
  for (uint64_t v : {h.term, h.applied.term, h.applied.index, h.durable.term, h.durable.index,
                     h.sync_done, h.sync_total})
    put(v);
  return out.append(h.payload);
}
bool DecodeHeartbeat(std::string_view in, Heartbeat* h) {
  if (in.size() < kHeartbeatHead || in[0] != 1) return false;
  const char* p = in.data() + 1;
  auto take = [&p](auto* v) {
    std::memcpy(v, p, sizeof *v);
    p += sizeof *v;
  };
  uint8_t flags = 0;
  take(&h->stamp_us);
  take(&h->wall.millis);
  take(&h->role);
  take(&flags);
  for (uint64_t* v : {&h->term, &h->applied.term, &h->applied.index, &h->durable.term,
                      &h->durable.index, &h->sync_done, &h->sync_total})
    take(v);
  h->electable = flags & 1;
  h->copying = flags & 2;
  h->without_you = flags & 4;
  h->works = flags & 8;
  h->payload = in.substr(kHeartbeatHead);
  return h->role <= static_cast<uint8_t>(ConsensusRole::kLeader);
}

}  // namespace mayfly
