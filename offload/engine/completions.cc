#include "offload/engine/completions.h"

#include "base/check.h"

namespace longhaul::offload {

void CompletionQueue::Push(const Completion& completion) {
  LH_CHECK_OP(reserved_, >, 0u);
  --reserved_;
  ring_[(first_ + count_) % ring_.size()] = completion;
  ++count_;
}

bool CompletionQueue::Pop(Completion* completion) {
  if (count_ == 0) return false;
  *completion = ring_[first_];
  first_ = (first_ + 1) % static_cast<uint32_t>(ring_.size());
  --count_;
  return true;
}

bool CompletionQueue::TakeNotification() {
  if (!armed_ || count_ == 0) return false;
  armed_ = false;
  return true;
}

}  // namespace longhaul::offload
