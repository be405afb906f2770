#include "server/server_stats.h"

namespace longhaul::server {

void TrafficTotals::Add(const transport::ConnectionStats& stats) {
  bytes_received += stats.bytes_received;
  bytes_sent += stats.bytes_sent;
  chunk_bytes_received += stats.chunk_bytes_received;
  chunk_bytes_sent += stats.chunk_bytes_sent;
  packets_received += stats.packets_received;
  packets_sent += stats.packets_sent;
  packets_lost += stats.packets_lost;
  retransmissions += stats.retransmissions;
  repair_sent += stats.repair_sent;
  repair_received += stats.repair_received;
  chunks_repaired += stats.chunks_repaired;
  duplicates_dropped += stats.duplicates_dropped;
  bad_tag_dropped += stats.bad_tag_dropped;
  malformed_dropped += stats.malformed_dropped;
  late_dropped += stats.late_dropped;
}

}  // namespace longhaul::server
