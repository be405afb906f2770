#include "operator/controller/operator_loop.h"

#include <algorithm>
#include <utility>

namespace longhaul::kube {
namespace {

constexpr Duration kPublish = std::chrono::milliseconds(200);

}  // namespace

Operator::Operator(std::unique_ptr<api::RestClient> home, OperatorOptions options, Random chance)
    : home_(std::move(home)), options_(std::move(options)), chance_(chance) {
  if (options_.elect) election_.emplace(home_.get(), options_.lease, chance_.Fork(1));
  if (options_.on_key)
    key_.emplace(home_.get(), options_.controller.key_name_space, options_.controller.key_name);
  turned_at_.store(api::SteadyNow().nanoseconds());
  Publish(api::SteadyNow());
}

void Operator::Lead(Instant now) {
  const bool leads = !election_ || election_->election().Leads(now);
  if (leads && controller_ == nullptr && !stop_at_) {
    if (options_.controller.log) options_.controller.log(LogLevel::kInfo, "leads");
    controller_ = std::make_unique<Controller>(home_.get(), options_.controller, chance_.Fork(2 + terms_++));
  }
  if (!leads && controller_ != nullptr) {
    if (options_.controller.log)
      options_.controller.log(LogLevel::kWarning, "leads no more: the lease was not renewed in time");
    controller_.reset();
  }
  if (!stop_at_ || controller_ == nullptr || (!controller_->idle() && now < *stop_at_)) return;
  controller_.reset();
}

void Operator::Turn(Duration limit) {
  Instant now = api::SteadyNow();
  const Instant end = now + limit;
  do {
    turned_at_.store(now.nanoseconds());
    BeginStop(now);
    if (election_) election_->Run(now);
    Lead(now);
    if (key_) key_->Run(now);
    if (controller_ != nullptr) controller_->Run(now);
    if (stop_at_ && controller_ == nullptr && election_ && !election_->election().released())
      election_->election().Release(now);
    Publish(now);
    if (stopped()) return;
    Instant due = end;
    if (controller_ != nullptr) due = std::min(due, controller_->NextDue(now));
    if (election_) due = std::min(due, election_->NextDue());
    if (key_) due = std::min(due, key_->NextDue());
    home_->Poll(std::max<Duration>(due - now, Duration(0)));
    now = api::SteadyNow();
    while (auto event = home_->Next()) {
      // An answer may lead to the next write.
      Lead(now);
      if (election_ && election_->Take(&*event, now)) continue;
      if (key_ && event->done && key_->Take(*event, now)) {
        if (!key_->known()) continue;
        options_.on_key(key_->key());
        key_.reset();
        continue;
      }
      if (controller_ != nullptr) (void)controller_->Take(&*event, now);
    }
  } while (now < end);
}

void Operator::BeginStop(Instant now) {
  if (stop_at_ || !stop_wanted_.load()) return;
  stop_at_ = now + kFarewell / 2;
  if (controller_ != nullptr) controller_->Stop();
}

bool Operator::stopped() const {
  if (!stop_at_ || controller_ != nullptr) return false;
  return !election_ || election_->election().released() || api::SteadyNow() >= *stop_at_ + kFarewell / 2;
}

void Operator::Publish(Instant now) {
  if (now - published_at_ < kPublish) return;
  published_at_ = now;
  OperatorReport report;
  report.leads = controller_ != nullptr;
  if (election_) {
    report.holder = election_->election().holder();
    report.lease = election_->election().counters();
  }
  report.api = home_->counters();
  report.calls = home_->calls();
  std::string trouble = election_ ? election_->election().trouble() : "";
  if (!trouble.empty()) trouble = "the lease cannot be read or written: " + trouble;
  if (!trouble.empty() && !lease_fails_ && options_.controller.log)
    options_.controller.log(LogLevel::kWarning, trouble);
  lease_fails_ = !trouble.empty();
  if (controller_ != nullptr) {
    report.not_ready = controller_->NotReady();
    report.controller = controller_->counters();
    report.queue = controller_->queue().counters();
    report.informers = controller_->home().counters();
    report.permissions = controller_->permissions().counters();
    report.events = controller_->events().counters();
    report.sites = controller_->sites().counters();
    report.progress = controller_->progress().counters();
    report.jobs = controller_->home().jobs();
    report.objects = controller_->home().objects();
    report.waiting = controller_->queue().waiting();
    report.delayed = controller_->queue().delayed();
    report.in_work = controller_->in_work();
    report.open_sites = controller_->sites().open();
  } else if (stop_at_) {
    report.not_ready = "stops";
  } else if (report.holder.empty()) {
    report.not_ready = trouble;
  }
  if (report.not_ready.empty() && key_)
    report.not_ready = key_->trouble().empty() ? "reads the operator's key" : key_->trouble();
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

OperatorReport Operator::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

Duration Operator::silent() const { return api::SteadyNow() - Instant::FromNanoseconds(turned_at_.load()); }

}  // namespace longhaul::kube
