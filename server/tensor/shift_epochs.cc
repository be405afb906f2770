#include "server/tensor/shift_epochs.h"

#include "base/reached.h"

namespace longhaul::server {

void ShiftEpochs::Begin(const std::vector<bool>& members) {
  if (begun_) ++epoch_;
  begun_ = true;
  belongs_ = members;
  change_round_ = 0;
}

void ShiftEpochs::OnMemberChanged(uint32_t rank) {
  if (!used_) return;
  belongs_[rank] = false;
  changed_ = true;
}

bool ShiftEpochs::OnRoundBegins(uint64_t number) {
  if (change_round_ != 0 && number >= change_round_) {
    // A member that changed since the announcement is in the new epoch as it is now.
    changed_ = false;
    return true;
  }
  if (changed_ && change_round_ == 0) {
    LH_REACHED("a new shift epoch is announced");
    change_round_ = number + 1;
    changed_ = false;
  }
  return false;
}

}  // namespace longhaul::server
