#include "server/redo_thread.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

namespace longhaul::server {

struct RedoThread::Shared {
  using Entry = store::RedoLog::Entry;
  Shared(store::RedoLog l, store::RedoLog::About a) : log(std::move(l)), about(std::move(a)) {}

  void Write(std::vector<Entry> batch);  // out of the lock
  void Run();

  store::RedoLog log;  // the thread's
  const store::RedoLog::About about;

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::function<void()> wake;
  bool ends = false;
  std::vector<Entry> next;
  std::vector<store::RedoLog::Image> written;  // to be dropped by the server's thread
  std::vector<Status> errors;
  uint64_t done = 0;  // entries
  uint64_t failed = 0;
  bool failing = false;
};

void RedoThread::Shared::Write(std::vector<Entry> batch) {
  log.Write(about, std::move(batch), [this](const Status& status, std::vector<store::RedoLog::Image> images) {
    const std::lock_guard lock(mutex);
    failing = !status.ok();
    if (!status.ok()) errors.push_back(status);
    if (!status.ok()) failed += images.size();
    done += std::max<size_t>(1, images.size());
    for (auto& image : images) written.push_back(std::move(image));
  });
}

void RedoThread::Shared::Run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return ends || !next.empty(); });
    if (next.empty()) return;
    std::vector<Entry> batch = std::exchange(next, {});
    lock.unlock();
    Write(std::move(batch));
    lock.lock();
    if (wake) wake();
  }
}

RedoThread::RedoThread(store::RedoLog log, store::RedoLog::About about)
    : shared_(std::make_shared<Shared>(std::move(log), std::move(about))) {}

RedoThread::~RedoThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends = true;
    shared_->wake = nullptr;
    shared_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status RedoThread::Start(std::function<void()> wake) {
  shared_->wake = std::move(wake);
  try {
    thread_ = std::thread([shared = shared_] { shared->Run(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the round log: ") + error.what()};
  }
  return {};
}

uint64_t RedoThread::Add(store::RedoLog::Entry entry) {
  const std::lock_guard lock(shared_->mutex);
  shared_->next.push_back(std::move(entry));
  shared_->changed.notify_all();
  return ++appended_;
}

void RedoThread::Quiet() {
  const std::lock_guard lock(shared_->mutex);
  shared_->wake = nullptr;
}

std::vector<Status> RedoThread::TakeErrors() {
  std::vector<store::RedoLog::Image> dropped;
  std::vector<Status> errors;
  {
    const std::lock_guard lock(shared_->mutex);
    dropped.swap(shared_->written);
    errors.swap(shared_->errors);
    logged_ = shared_->done;
    failed_ = shared_->failed;
    failing_ = shared_->failing;
  }
  states_ += dropped.size();
  return errors;
}

}  // namespace longhaul::server
