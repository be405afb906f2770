// The round log of a simulated server, on a disk that takes its time and outlives the server's process: what
// CheckpointThread and RedoThread are to a daemon, in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/store/redo_log.h"
#include "server/tensor/job_image.h"
#include "tests/sim/memory_files.h"
#include "tests/sim/virtual_network.h"

namespace longhaul::sim {

class SimulatedLog final : public server::ImageKeeper {
 public:
  // Reads what an earlier process has left. `network` and `disk` must outlive it. on_logged: more is written.
  SimulatedLog(wan::VirtualNetwork* network, MemoryFiles* disk, server::store::RedoLog::About about,
               Random chance, std::function<void()> on_logged);
  ~SimulatedLog() override { *alive_ = false; }

  // The process dies: of what is being written a part gets there.
  void Die();

  // ImageKeeper
  bool Ready() const override { return false; }
  void Keep(std::shared_ptr<const server::JobImage>) override {}
  void OnSkipped() override {}
  server::KeeperStats stats() const override { return {}; }
  const server::TensorImage* Find(const std::string& tensor) const override;
  server::TensorImage Take(const std::string& tensor) override;
  void OnJobOver() override;
  bool Logs() const override { return true; }
  std::optional<server::ResumedJob> resumed() const override { return resumed_; }
  uint64_t OnJobStart(const server::ResumedJob& job) override;
  uint64_t Log(std::shared_ptr<const server::TensorImage> image) override;
  uint64_t logged() const override { return logged_; }

 private:
  using RedoLog = server::store::RedoLog;

  uint64_t Add(RedoLog::Entry entry);
  void Begin();
  void Write();

  wan::VirtualNetwork* network_;
  MemoryFiles* disk_;
  const RedoLog::About about_;
  Random chance_;
  std::function<void()> on_logged_;
  std::optional<RedoLog> log_;
  std::optional<server::ResumedJob> resumed_;
  std::map<std::string, server::TensorImage> restored_;
  std::vector<RedoLog::Entry> next_;
  std::vector<RedoLog::Entry> writing_;
  uint64_t appended_ = 0;
  uint64_t logged_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace longhaul::sim
