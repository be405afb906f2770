// A job's part of one link that several jobs of this process receive on (decision 0031).
//
//   part = weight of the job / weights of all jobs that run
//
// A job runs while a worker of it is in: one that waits for its first worker takes nothing from the others,
// and what a job had is theirs when it ends. Parts do not follow single rounds: two jobs that begin to send
// in the same moment fit the link.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace longhaul::server {

class LinkShare {
 public:
  // Weights of the jobs that run on the link, which they have in common.
  using Total = std::atomic<int64_t>;

  // weight: > 0.
  LinkShare(std::shared_ptr<Total> total, uint32_t weight) : total_(std::move(total)), weight_(weight) {}
  ~LinkShare() { SetRunning(false); }
  LinkShare(const LinkShare&) = delete;
  LinkShare& operator=(const LinkShare&) = delete;

  // One thread calls this and Part, the job's; other jobs have objects and threads of their own.
  void SetRunning(bool running) {
    if (running == running_) return;
    running_ = running;
    *total_ += running ? weight_ : -weight_;
  }
  // Of the link's capacity, 0..1; of a job that does not run: what it would be.
  double Part() const {
    const int64_t all = *total_ + (running_ ? 0 : weight_);
    return static_cast<double>(weight_) / static_cast<double>(all);
  }

 private:
  const std::shared_ptr<Total> total_;
  const int64_t weight_;
  bool running_ = false;
};

}  // namespace longhaul::server
