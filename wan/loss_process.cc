#include "wan/loss_process.h"

#include "base/check.h"

namespace longhaul::wan {

bool GilbertElliott::Possible(double average_loss, double mean_burst) {
  if (!(average_loss >= 0 && average_loss < 1) || !(mean_burst >= 1)) return false;
  return average_loss / (1 - average_loss) <= mean_burst;  // enter_bad <= 1
}

GilbertElliott GilbertElliott::From(double average_loss, double mean_burst) {
  LH_CHECK(Possible(average_loss, mean_burst));
  const double leave = 1 / mean_burst;
  return {.enter_bad = leave * average_loss / (1 - average_loss), .leave_bad = leave};
}

LossProcess::LossProcess(double average_loss, double mean_burst, Random random)
    : average_loss_(average_loss), bursty_(mean_burst > 0), random_(random) {
  if (!bursty_) return;
  chain_ = GilbertElliott::From(average_loss, mean_burst);
  bad_ = random_.Chance(average_loss);
}

bool LossProcess::Next() {
  if (!bursty_) return average_loss_ > 0 && random_.Chance(average_loss_);
  const bool lost = bad_;
  bad_ = bad_ ? !random_.Chance(chain_.leave_bad) : random_.Chance(chain_.enter_bad);
  return lost;
}

}  // namespace longhaul::wan
