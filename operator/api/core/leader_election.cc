#include "operator/api/core/leader_election.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace longhaul::kube::api {
namespace {

constexpr int64_t kMicroseconds = 1'000'000;
// Retries are spread over so much of their period: two operators that began together do not meet at each
// attempt. client-go's factor 1.2 would make the hand-over 15 + 4.4 s and more.
constexpr double kJitter = 0.2;
constexpr int64_t kMaxTransitions = std::numeric_limits<int32_t>::max() - 1;  // the field is an int32
// A lease that says that it holds for longer is not believed: it would lock all others out.
constexpr Duration kLongestLease = std::chrono::seconds(60);

void AppendPadded(int64_t value, size_t digits, std::string* text) {
  const std::string number = std::to_string(value);
  text->append(digits > number.size() ? digits - number.size() : 0, '0');
  *text += number;
}

}  // namespace

std::string MicroTime(int64_t microseconds) {
  microseconds = std::max<int64_t>(0, microseconds);
  const std::chrono::sys_time<std::chrono::microseconds> time{std::chrono::microseconds(microseconds)};
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::string text;
  AppendPadded(static_cast<int>(date.year()), 4, &text);
  AppendPadded(static_cast<unsigned>(date.month()), 2, &(text += '-'));
  AppendPadded(static_cast<unsigned>(date.day()), 2, &(text += '-'));
  AppendPadded(clock.hours().count(), 2, &(text += 'T'));
  AppendPadded(clock.minutes().count(), 2, &(text += ':'));
  AppendPadded(clock.seconds().count(), 2, &(text += ':'));
  AppendPadded(microseconds % kMicroseconds, 6, &(text += '.'));
  return text + "Z";
}

std::optional<ApiRequest> LeaderElection::Poll(Instant now, int64_t wall) {
  if (held_ && !Leads(now)) Lose();
  if (busy_ || now < next_ || released()) return std::nullopt;
  busy_ = true;
  sent_at_ = now;
  if (known_ && (held_ || MayTake(now)))
    return Write(lease_.is_null() ? Verb::kCreate : Verb::kReplace, wall);
  ApiRequest get;
  get.type = {"coordination.k8s.io", "v1", "leases", true};
  get.name_space = options_.name_space;
  get.name = options_.name;
  get.max_attempts = 1;
  get.time_limit = options_.renew_deadline / 2;
  sent_ = Sent::kGet;
  return get;
}

ApiRequest LeaderElection::Write(Verb verb, int64_t wall) {
  const std::string now = MicroTime(wall);
  gives_up_ = releasing_;
  // Whole seconds, at least one.
  const int64_t seconds =
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::seconds>(options_.lease).count());
  Json lease = lease_.is_null() ? Json{{"apiVersion", "coordination.k8s.io/v1"}, {"kind", "Lease"}} : lease_;
  lease["metadata"]["name"] = options_.name;
  lease["metadata"]["namespace"] = options_.name_space;
  Json& spec = lease["spec"];
  if (!spec.is_object()) spec = Json::object();
  if (!held_) {
    const Json* count = ValueAt(lease, {"spec", "leaseTransitions"});
    const int64_t before = count != nullptr && count->is_number_integer() ? count->get<int64_t>() : 0;
    spec["leaseTransitions"] = lease_.is_null() ? 0 : std::clamp<int64_t>(before, 0, kMaxTransitions) + 1;
    spec["acquireTime"] = now;
  }
  spec["holderIdentity"] = gives_up_ ? std::string() : options_.identity;
  spec["leaseDurationSeconds"] = gives_up_ ? 1 : seconds;
  spec["renewTime"] = now;
  ApiRequest request;
  request.verb = verb;
  request.type = {"coordination.k8s.io", "v1", "leases", true};
  request.name_space = options_.name_space;
  request.name = verb == Verb::kCreate ? "" : options_.name;
  request.body = std::move(lease);
  // This machine asks again by itself.
  request.max_attempts = 1;
  request.time_limit = options_.renew_deadline / 2;
  sent_ = verb == Verb::kCreate ? Sent::kCreate : Sent::kReplace;
  return request;
}

void LeaderElection::OnAnswer(const ApiResult& answer, Instant now, double chance) {
  if (!busy_) return;
  busy_ = false;
  trouble_.clear();
  const double jitter = kJitter * std::clamp(chance, 0.0, 1.0);
  next_ = now + options_.retry + Duration(Saturated(static_cast<double>(options_.retry.count()) * jitter));
  // Without a version there is nothing to compare a write with.
  if (answer.ok() && !TextAt(answer.body, {"metadata", "resourceVersion"}).empty()) {
    Observe(answer.body, now);
    if (sent_ == Sent::kGet) {
      if (holder_ != options_.identity && held_) Lose();
      if (MayTake(now) || held_) {
        next_ = now;
      } else {
        // At once when it may: what has changed by then is seen by the replace, which fails.
        next_ = std::min(next_, changed_at_ + their_lease_);
      }
      return;
    }
    if (gives_up_) {
      held_ = false;
      return;
    }
    // Also when Release was called meanwhile: then it is given up next.
    if (releasing_) next_ = now;
    ++(held_ ? counters_.renewed : counters_.acquired);
    held_ = true;
    renewed_at_ = sent_at_;
    return;
  }
  if (sent_ == Sent::kGet && answer.code == ApiCode::kNotFound) {
    lease_ = nullptr;
    known_ = true;
    holder_.clear();
    if (held_) Lose();
    next_ = now;
    return;
  }
  // What the server has now is not known; the lease itself is left as it was seen, its age too.
  known_ = false;
  const bool behind = answer.code == ApiCode::kConflict || answer.code == ApiCode::kAlreadyExists ||
                      (sent_ == Sent::kReplace && answer.code == ApiCode::kNotFound);
  if (behind) {
    ++counters_.conflicts;
    next_ = now;
  } else {
    ++counters_.failures;
    trouble_ = answer.ok() ? "the answer has no resourceVersion" : answer.ToString();
  }
  if (releasing_ && sent_ != Sent::kGet && gives_up_ && !behind)
    held_ = false;  // one attempt: it runs out by itself
}

void LeaderElection::Observe(const Json& lease, Instant now) {
  lease_ = lease;
  known_ = true;
  holder_ = TextAt(lease, {"spec", "holderIdentity"});
  std::string mark = holder_ + "\n" + std::string(TextAt(lease, {"spec", "renewTime"})) + "\n" +
                     std::string(TextAt(lease, {"metadata", "uid"}));
  their_lease_ = options_.lease;
  if (const Json* seconds = ValueAt(lease, {"spec", "leaseDurationSeconds"});
      seconds != nullptr && seconds->is_number_integer()) {
    const int64_t most = std::chrono::duration_cast<std::chrono::seconds>(kLongestLease).count();
    their_lease_ = std::max<Duration>(
        their_lease_, std::chrono::seconds(std::clamp<int64_t>(seconds->get<int64_t>(), 0, most)));
  }
  if (mark == mark_) return;
  mark_ = std::move(mark);
  changed_at_ = now;
}

bool LeaderElection::MayTake(Instant now) const {
  if (!known_ || releasing_) return false;
  return lease_.is_null() || holder_.empty() || holder_ == options_.identity ||
         now >= changed_at_ + their_lease_;
}

void LeaderElection::Lose() {
  ++counters_.lost;
  held_ = false;
  known_ = false;
}

void LeaderElection::Release(Instant now) {
  releasing_ = true;
  next_ = std::min(next_, now);
}

}  // namespace longhaul::kube::api
