#include "server/round/image_collector.h"

#include <algorithm>
#include <utility>

namespace longhaul::server {

void ImageCollector::OnRoundOver(const TensorJob& job) {
  if (keeper_ == nullptr) return;
  const uint32_t key = job.tensor.key();
  if (pending() && key < awaited_.size() && awaited_[key]) {
    Capture(job);
    KeepIfWhole();
  }
  const uint64_t version = job.tensor.parameters().version();
  if (every_ == 0 || version % every_ != 0 || version <= due_) return;
  due_ = version;
  if (pending()) {  // tensors that are not pushed every round
    CaptureResting(0);
    KeepIfWhole();
  }
  if (pending() || !keeper_->Ready()) return keeper_->OnSkipped();
  Begin();
}

void ImageCollector::Begin() {
  if (keeper_ == nullptr || pending()) return;
  image_ = std::make_shared<JobImage>();
  awaited_.assign(jobs_.size(), false);
  uint64_t version = 0;  // that the furthest tensor has, or is about to have
  for (const auto& job : jobs_) {
    const Tensor& tensor = job->tensor;
    if (tensor.parameters().initial() != Parameters::Initial::kReady) continue;
    awaited_[tensor.key()] = true;
    ++missing_;
    version = std::max(version, tensor.parameters().version() + (tensor.AtRest() ? 0 : 1));
  }
  CaptureResting(version);
  KeepIfWhole();
}

void ImageCollector::Finish() {
  if (keeper_ == nullptr || (!pending() && Rounds() == kept_)) return;
  Begin();
  CaptureResting(0);
  KeepIfWhole();
  if (pending()) keeper_->OnSkipped();
  missing_ = 0;
  image_.reset();
}

uint64_t ImageCollector::Rounds() const {
  uint64_t rounds = 0;
  for (const auto& job : jobs_) rounds += job->tensor.parameters().version();
  return rounds;
}

void ImageCollector::Capture(const TensorJob& job) {
  awaited_[job.tensor.key()] = false;
  --missing_;
  image_->tensors.push_back(job.tensor.Image());
  image_->rounds = std::max(image_->rounds, image_->tensors.back().rounds);
}

void ImageCollector::CaptureResting(uint64_t least_version) {
  for (const auto& job : jobs_) {
    if (job->tensor.key() >= awaited_.size() || !awaited_[job->tensor.key()]) continue;
    if (job->tensor.AtRest() && job->tensor.parameters().version() >= least_version) Capture(*job);
  }
}

void ImageCollector::KeepIfWhole() {
  if (pending() || image_ == nullptr) return;
  if (!image_->tensors.empty()) {
    kept_ = Rounds();
    keeper_->Keep(std::move(image_));
  }
  image_.reset();
}

}  // namespace longhaul::server
