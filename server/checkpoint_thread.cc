#include "server/checkpoint_thread.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/flags/job_json.h"
#include "server/member/fences.h"

namespace longhaul::server {

namespace {

// As this version writes them: what an earlier one did not know is as it is by default.
std::string WithDefaults(const std::string& settings) {
  const auto known = nlohmann::json::parse(settings, nullptr, /*allow_exceptions=*/false);
  nlohmann::json all = JobSpec();
  if (known.is_object()) all.update(known);
  return all.dump();
}

}  // namespace

// Outlives the CheckpointThread where a disk does not answer.
struct CheckpointThread::Shared {
  Shared(Options o, store::CheckpointWriter w) : options(std::move(o)), writer(std::move(w)) {}

  const Options options;
  store::CheckpointWriter writer;  // the thread's

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::function<void()> wake;
  bool ends = false;
  bool writing = false;
  std::shared_ptr<const JobImage> next;
  std::vector<std::shared_ptr<const JobImage>> written;  // to be dropped by the server's thread
  std::vector<Outcome> outcomes;
};

namespace {

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

CheckpointThread::Outcome Write(store::CheckpointWriter& writer, const JobImage& image,
                                const CheckpointThread::Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  CheckpointThread::Outcome outcome{.status = {}, .rounds = image.rounds};
  try {
    const auto written =
        writer.Write(image, {.job = options.job, .settings = options.settings, .written = Now()});
    outcome.status = written.status();
    if (written.ok()) {
      outcome.generation = written->generation;
      outcome.bytes = written->parameters.bytes + written->optimizer.bytes;
    }
  } catch (const std::bad_alloc&) {
    outcome.status = {StatusCode::kResourceExhausted, "no memory to write a checkpoint"};
  }
  outcome.took = std::chrono::steady_clock::now() - begin;
  return outcome;
}

template <typename Shared>
void Run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->ends || shared->next != nullptr; });
    if (shared->ends) return;
    std::shared_ptr<const JobImage> image = std::exchange(shared->next, nullptr);
    shared->writing = true;
    lock.unlock();
    const CheckpointThread::Outcome outcome = Write(shared->writer, *image, shared->options);
    lock.lock();
    shared->writing = false;
    shared->written.push_back(std::move(image));
    shared->outcomes.push_back(outcome);
    shared->changed.notify_all();
    if (shared->wake) shared->wake();
  }
}

}  // namespace

Result<std::unique_ptr<CheckpointThread>> CheckpointThread::Open(
    const Options& options, store::CheckpointWriter writer,
    const std::function<void(bool bad, const std::string&)>& say) {
  auto newest = store::LoadNewestCheckpoint(*options.files, options.directory);
  if (!newest.ok()) return newest.status();
  for (const auto& [path, why] : newest->refused) {
    say(true, "checkpoint " + path + " is not used: " + why.ToString());
  }
  std::map<std::string, TensorImage> restored;
  if (newest->loaded) {
    const store::Manifest& manifest = newest->loaded->manifest;
    if (manifest.job != options.job) {
      return Status(StatusCode::kSettingsMismatch, newest->loaded->path + " is of job \"" + manifest.job +
                                                       "\", and this server is of job \"" + options.job +
                                                       "\"");
    }
    say(false, "going on from " + newest->loaded->path + ", after round " + std::to_string(manifest.rounds) +
                   ", written " + manifest.written + ": " + std::to_string(manifest.tensors.size()) +
                   " tensors");
    for (TensorImage& tensor : newest->loaded->image.tensors) {
      std::string name = tensor.name;
      restored.emplace(std::move(name), std::move(tensor));
    }
  } else if (!newest->refused.empty()) {
    return Status(StatusCode::kDataLoss, "none of the checkpoints in " + options.directory +
                                             " is good (move them away to begin anew); the newest: " +
                                             newest->refused.front().second.message());
  }
  auto made = std::unique_ptr<CheckpointThread>(
      new CheckpointThread(std::make_shared<Shared>(options, std::move(writer)), std::move(restored)));
  if (!options.round_log) return made;
  if (Status opened = made->OpenLog(options, say); !opened.ok()) return opened;
  return made;
}

Status CheckpointThread::OpenLog(const Options& options,
                                 const std::function<void(bool bad, const std::string&)>& say) {
  auto log = store::RedoLog::Open(options.files, options.directory);
  if (!log.ok()) return log.status();
  if (auto loaded = log->TakeLoaded()) {
    const store::RedoLog::About& about = loaded->about;
    const auto differs = [&](const std::string& what, const std::string& there, const std::string& here) {
      return Status(StatusCode::kSettingsMismatch, "the round log in " + options.directory +
                                                       " is of a job that goes on, whose " + what + " " +
                                                       there + ", and this server's " + here +
                                                       " (another --checkpoint-dir begins anew)");
    };
    if (about.job != options.job) return differs("name is", about.job, "is " + options.job);
    for (const std::string& cut : loaded->cut) say(false, "the round log is read up to here: " + cut);
    if (!loaded->over) {
      if (about.world_size != options.world_size) {
        return differs("workers are", std::to_string(about.world_size),
                       "are " + std::to_string(options.world_size));
      }
      if (WithDefaults(about.settings) != WithDefaults(options.settings))
        return differs("settings are", about.settings, "are " + options.settings);
      resumed_ = loaded->run;
      resumed_->sessions = SessionsOf(loaded->tensors, about.world_size);
    }
    uint64_t rounds = 0;
    for (TensorImage& tensor : loaded->tensors) {
      TensorImage& known = restored_[tensor.name];
      if (tensor.rounds < known.rounds) continue;
      if (loaded->over) tensor.round = 0, tensor.counted.clear();
      rounds = std::max(rounds, tensor.rounds);
      known = std::move(tensor);
    }
    say(false, (resumed_ ? "the job goes on" : "values of the job before") + std::string(", after round ") +
                   std::to_string(rounds) + " by the round log");
  }
  log_ =
      std::make_unique<RedoThread>(*std::move(log), store::RedoLog::About{.job = options.job,
                                                                          .settings = options.settings,
                                                                          .world_size = options.world_size});
  return {};
}

uint64_t CheckpointThread::OnJobStart(const ResumedJob& job) {
  return log_ ? log_->Begin(job, resumed_.has_value()) : 0;
}

void CheckpointThread::OnJobOver() {
  restored_.clear();
  resumed_.reset();
  if (log_) log_->End();
}

std::vector<Status> CheckpointThread::TakeLogErrors() {
  if (!log_) return {};
  std::vector<Status> errors = log_->TakeErrors();
  stats_.log_records = log_->states() - log_->failed();
  stats_.log_failed = log_->failed();
  return errors;
}

CheckpointThread::~CheckpointThread() {
  bool writing = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends = true;
    shared_->wake = nullptr;
    shared_->changed.notify_all();
    writing = shared_->writing;
  }
  if (!thread_.joinable()) return;
  // A call of a disk that does not answer has no end.
  writing ? thread_.detach() : thread_.join();
}

Status CheckpointThread::Start(std::function<void()> wake) {
  if (log_) {
    if (Status started = log_->Start(wake); !started.ok()) return started;
  }
  shared_->wake = std::move(wake);
  try {
    thread_ = std::thread([shared = shared_] { Run(shared); });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for checkpoints: ") + error.what()};
  }
  return {};
}

std::vector<CheckpointThread::Outcome> CheckpointThread::TakeOutcomes() {
  std::vector<std::shared_ptr<const JobImage>> dropped;
  std::vector<Outcome> outcomes;
  {
    const std::lock_guard lock(shared_->mutex);
    dropped.swap(shared_->written);
    outcomes.swap(shared_->outcomes);
  }
  for (const Outcome& outcome : outcomes) {
    ++(outcome.status.ok() ? stats_.written : stats_.failed);
    if (!outcome.status.ok()) continue;
    stats_.bytes = outcome.bytes;
    stats_.rounds = outcome.rounds;
    stats_.last_write = outcome.took;
  }
  return outcomes;
}

bool CheckpointThread::Finish(Duration limit) {
  if (log_) log_->Quiet();
  std::unique_lock lock(shared_->mutex);
  shared_->wake = nullptr;
  return shared_->changed.wait_for(lock, limit,
                                   [&] { return !shared_->writing && shared_->next == nullptr; });
}

bool CheckpointThread::Ready() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->writing && shared_->next == nullptr;
}

void CheckpointThread::Keep(std::shared_ptr<const JobImage> image) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->next.swap(image);
    shared_->changed.notify_all();
  }
  if (image != nullptr) OnSkipped();  // it has waited, and is dropped here
}

void CheckpointThread::OnSkipped() { ++stats_.skipped; }

const TensorImage* CheckpointThread::Find(const std::string& tensor) const {
  const auto found = restored_.find(tensor);
  return found == restored_.end() ? nullptr : &found->second;
}

TensorImage CheckpointThread::Take(const std::string& tensor) {
  return std::move(restored_.extract(tensor).mapped());
}

}  // namespace longhaul::server
