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
#include "server/store/checkpoint.h"
#include "server/tensor/job_image.h"

namespace longhaul::server {

class CheckpointThread final : public ImageKeeper {
 public:
  struct Options {
    std::string directory;
    size_t keep = 1;
    std::string job;
    std::string settings = "{}";  // the job's, one JSON object
    store::Files* files = nullptr;
  };
  // What became of an image.
  struct Outcome {
    Status status;
    uint64_t rounds = 0;
    uint64_t generation = 0;  // when it was written
    uint64_t bytes = 0;
    Duration took{0};
  };

  // Loads the newest checkpoint that is good; say() hears of it, and of those that are not. Errors: the
  // directory cannot be used, or its checkpoints are of another job.
  static Result<std::unique_ptr<CheckpointThread>> Open(
      const Options& options, const std::function<void(bool bad, const std::string&)>& say);
  // What is being written at the moment is left to its thread, which then ends.
  ~CheckpointThread() override;

  // wake: called in the thread when there is an outcome. kInternal: there is no thread.
  Status Start(std::function<void()> wake);
  std::vector<Outcome> TakeOutcomes();
  // No image comes any more, and wake is not called any more: waits until all is written. False: `limit` has
  // passed.
  bool Finish(Duration limit);

  // ImageKeeper
  bool Ready() const override;
  void Keep(std::shared_ptr<const JobImage> image) override;
  void OnSkipped() override;
  const TensorImage* Find(const std::string& tensor) const override;
  TensorImage Take(const std::string& tensor) override;
  void OnJobOver() override { restored_.clear(); }
  KeeperStats stats() const override { return stats_; }

 private:
  struct Shared;
  CheckpointThread(std::shared_ptr<Shared> shared, std::map<std::string, TensorImage> restored)
      : shared_(std::move(shared)), restored_(std::move(restored)) {}

  std::shared_ptr<Shared> shared_;
  std::map<std::string, TensorImage> restored_;
  KeeperStats stats_;
  std::thread thread_;
};

}  // namespace longhaul::server
