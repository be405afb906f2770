// What the person in front of the terminal sees of a running job: gathers the JSON lines of server and
// workers, renders one progress line and, at the end, the summary.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longhaul/units.h"

namespace longhaul::cli {

class JobView {
 public:
  // Rounds that are remembered for quantiles and for the table: 48 bytes each.
  static constexpr size_t kMaxRounds = 1u << 20;

  // `sites`: those whose ranks are one member of the job (longhaul-offload); 0: each worker is one.
  JobView(uint32_t workers, uint64_t rounds, uint32_t sites = 0)
      : rounds_(rounds), worker_finished_(workers), sites_(sites) {}

  // One line that a daemon printed in `--progress json` mode. Lines that are not JSON are ignored.
  void OnServerLine(const std::string& line);
  void OnWorkerLine(uint32_t rank, const std::string& line);
  // Of the longhaul-offload of a site.
  void OnSiteLine(uint32_t site, const std::string& line);

  // The server is up, at this address; empty until then.
  const std::string& server_address() const { return server_address_; }
  // The same of a site's longhaul-offload: unix:PATH.
  const std::string& site_address(uint32_t site) const { return sites_.at(site).address; }
  uint64_t round() const { return round_; }

  // "[######......] round 120/400 | loss 0.412 | accuracy 85.31 % | up 41.2 down 40.1 Mbit/s | lost 2.1 % |
  // ..."
  std::string ProgressLine(size_t width) const;
  // Keys: accuracy, rounds, seconds, workers, security, bytes_up, bytes_down, observed_loss, repaired_chunks,
  // filled_chunks, lost_chunks, retransmissions, round_ms_p50, round_ms_p99, seconds_p50, training_loss,
  // rtt_ms. A round's time is rank 0's, from its batch to the last byte of the update. What the links saw is
  // added by the caller.
  nlohmann::json Summary(Duration elapsed) const;
  // A line for each round of rank 0, tab-separated, with a header: round, seconds, training_loss, accuracy
  // (the last one measured; nan before), lost_share (rank 0's packets; of a site, whose ranks have none, the
  // round's low chunks), repaired_chunks and filled_chunks (sums of all workers until then).
  std::string RoundsTable() const;

 private:
  double At(const nlohmann::json& object, const char* key, double otherwise) const;
  double RttMs() const;  // of the first member's connection

  uint64_t rounds_;
  uint64_t round_ = 0;
  double training_loss_ = 0;
  double lost_share_ = 0;
  double accuracy_ = 0;
  bool has_accuracy_ = false;
  uint64_t repaired_ = 0;
  uint64_t filled_ = 0;
  struct Round {
    uint64_t round;
    double seconds, training_loss, accuracy, lost_share;
    uint64_t repaired, filled;
  };
  std::vector<Round> history_;  // rank 0; at most kMaxRounds
  nlohmann::json last_server_round_ = nlohmann::json::object();
  nlohmann::json server_finished_ = nlohmann::json::object();
  std::vector<nlohmann::json> worker_finished_;
  struct Site {
    std::string address;
    nlohmann::json finished = nlohmann::json::object();
  };
  std::vector<Site> sites_;
  std::string server_address_;
};

}  // namespace longhaul::cli
