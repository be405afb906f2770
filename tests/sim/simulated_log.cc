#include "tests/sim/simulated_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "server/member/fences.h"

namespace longhaul::sim {
namespace {

constexpr char kDirectory[] = "/log";

// A write and its sync: 4 ms on average (decision 0028 measured 0.5 to 11), and now and then a disk that is
// busy with something else.
Duration TakesTime(Random& chance) {
  const double ms = chance.Chance(0.05) ? 300 * chance.Uniform() : 0.2 - 4 * std::log1p(-chance.Uniform());
  return Duration(static_cast<int64_t>(ms * 1e6));
}

uint64_t BytesOf(const server::store::RedoLog::Entry& entry) {
  constexpr uint64_t kHeader = 500;
  if (entry.image == nullptr) return kHeader;
  return kHeader + entry.image->count * sizeof(float) * (1 + entry.image->state.size());
}

}  // namespace

SimulatedLog::SimulatedLog(wan::VirtualNetwork* network, MemoryFiles* disk, RedoLog::About about,
                           Random chance, std::function<void()> on_logged)
    : network_(network),
      disk_(disk),
      about_(std::move(about)),
      chance_(chance),
      on_logged_(std::move(on_logged)) {
  auto log = RedoLog::Open(disk_, kDirectory);
  LH_CHECK(log.ok());
  log_.emplace(*std::move(log));
  auto loaded = log_->TakeLoaded();
  if (!loaded) return;
  if (!loaded->over) {
    resumed_ = loaded->run;
    resumed_->sessions = server::SessionsOf(loaded->tensors, about_.world_size);
  }
  for (server::TensorImage& tensor : loaded->tensors) {
    if (loaded->over) tensor.round = 0, tensor.counted.clear();
    std::string name = tensor.name;
    restored_.emplace(std::move(name), std::move(tensor));
  }
}

void SimulatedLog::Die() {
  *alive_ = false;
  uint64_t bytes = 0;
  for (const RedoLog::Entry& entry : writing_) bytes += BytesOf(entry);
  // Up to somewhere in the middle, or all of it, of which the server has not heard.
  disk_->StopAfter(chance_.Below(bytes + bytes / 4 + 1));
  log_->Write(about_, std::move(writing_), [](const Status&, const std::vector<RedoLog::Image>&) {});
  next_.clear();
  disk_->Restart(chance_, chance_.Chance(0.5));
}

const server::TensorImage* SimulatedLog::Find(const std::string& tensor) const {
  const auto found = restored_.find(tensor);
  return found == restored_.end() ? nullptr : &found->second;
}

server::TensorImage SimulatedLog::Take(const std::string& tensor) {
  return std::move(restored_.extract(tensor).mapped());
}

void SimulatedLog::OnJobOver() {
  restored_.clear();
  resumed_.reset();
  Add({});
}

uint64_t SimulatedLog::OnJobStart(const server::ResumedJob& job) {
  return Add({.begin = std::pair(job, resumed_.has_value())});
}

uint64_t SimulatedLog::Log(std::shared_ptr<const server::TensorImage> image) {
  return Add({.image = std::move(image)});
}

uint64_t SimulatedLog::Add(RedoLog::Entry entry) {
  next_.push_back(std::move(entry));
  if (writing_.empty()) Begin();
  return ++appended_;
}

void SimulatedLog::Begin() {
  writing_ = std::exchange(next_, {});
  network_->Schedule(network_->now() + TakesTime(chance_), [this, alive = alive_] {
    if (*alive) Write();
  });
}

void SimulatedLog::Write() {
  std::vector<RedoLog::Image> written;
  log_->Write(about_, std::exchange(writing_, {}),
              [&](const Status& status, std::vector<RedoLog::Image> images) {
                LH_CHECK_OP(status.ToString(), ==, Status().ToString());
                logged_ += std::max<size_t>(1, images.size());
                for (RedoLog::Image& image : images) written.push_back(std::move(image));
              });
  if (!next_.empty()) Begin();
  written.clear();
  on_logged_();
}

}  // namespace longhaul::sim
