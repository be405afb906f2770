#include "worker/site/aside.h"

#include <system_error>
#include <utility>

namespace longhaul::site {

bool Aside::Run(std::function<void()> call) {
  std::vector<Call> ended;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = calls_.size(); i-- > 0;) {
      if (!*calls_[i].over) continue;
      ended.push_back(std::move(calls_[i]));
      calls_.erase(calls_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  for (Call& over : ended) over.thread.join();
  if (calls_.size() >= kMost) return false;
  auto over = std::make_shared<bool>(false);
  try {
    calls_.push_back({std::thread([this, over, what = std::move(call)] {
                        what();
                        const std::lock_guard lock(mutex_);
                        *over = true;
                      }),
                      over});
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void Aside::Done(std::function<void()> what) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(what));
  }
  wake_();
}

void Aside::RunDone() {
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (auto& what : done) what();
}

}  // namespace longhaul::site
