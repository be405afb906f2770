// Writes the running job's images in a thread of its own, so that no disk holds a round up, and hands what an
// earlier server has written to the first job.
//
// The server's thread calls everything but the constructor. Images go back to it: it alone drops what their
// tensors may write over next.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/status.h"
#include "longhaul/units.h"
#include "server/redo_thread.h"
#include "server/store/checkpoint.h"
#include "server/tensor/job_image.h"

namespace longhaul::server {

class CheckpointThread final : public ImageKeeper {
 public:
  struct Options {
    std::string directory;
    std::string job;
    std::string settings = "{}";  // the job's, one JSON object
    Files* files = nullptr;
    bool round_log = false;
    uint32_t world_size = 0;
  };
  // What became of an image.
  struct Outcome {
    Status status;
    uint64_t rounds = 0;
    uint64_t generation = 0;  // when it was written
    uint64_t bytes = 0;
    Duration took{0};
  };

  // Loads the newest checkpoint that is good, and what the round log has beyond it; say() hears of it, and of
  // what is not good. writer: the directory's, which is locked by it. Errors: the directory cannot be read,
  // its checkpoints are of another job, or kSettingsMismatch: the job that goes on has other settings.
  static Result<std::unique_ptr<CheckpointThread>> Open(
      const Options& options, store::CheckpointWriter writer,
      const std::function<void(bool bad, const std::string&)>& say);
  // What is being written at the moment is left to its thread, which then ends.
  ~CheckpointThread() override;

  // wake: called in the thread when there is an outcome. kInternal: there is no thread.
  Status Start(std::function<void()> wake);
  std::vector<Outcome> TakeOutcomes();
  // What has been written to the round log counts as logged from now on. Its errors since the last call.
  std::vector<Status> TakeLogErrors();
  // No image comes any more, and wake is not called any more: waits until all is written. False: `limit` has
  // passed.
  bool Finish(Duration limit);

  // ImageKeeper
  bool Ready() const override;
  void Keep(std::shared_ptr<const JobImage> image) override;
  void OnSkipped() override;
  const TensorImage* Find(const std::string& tensor) const override;
  TensorImage Take(const std::string& tensor) override;
  void OnJobOver() override;
  KeeperStats stats() const override { return stats_; }
  bool Logs() const override { return log_ != nullptr; }
  std::optional<ResumedJob> resumed() const override { return resumed_; }
  // The log's last write has failed.
  bool log_failing() const { return log_ != nullptr && log_->failing(); }
  uint64_t OnJobStart(const ResumedJob& job) override;
  uint64_t Log(std::shared_ptr<const TensorImage> image) override { return log_->Append(std::move(image)); }
  uint64_t logged() const override { return log_ ? log_->logged() : 0; }

 private:
  struct Shared;
  CheckpointThread(std::shared_ptr<Shared> shared, std::map<std::string, TensorImage> restored)
      : shared_(std::move(shared)), restored_(std::move(restored)) {}
  Status OpenLog(const Options& options, const std::function<void(bool bad, const std::string&)>& say);

  std::shared_ptr<Shared> shared_;
  std::map<std::string, TensorImage> restored_;
  std::optional<ResumedJob> resumed_;
  std::unique_ptr<RedoThread> log_;
  KeeperStats stats_;
  std::thread thread_;
};

}  // namespace longhaul::server
