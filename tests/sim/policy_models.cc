#include "tests/sim/policy_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace longhaul::sim {
namespace {

using ProcessId = std::pair<uint32_t, uint64_t>;  // rank, incarnation

// Goes through the versions; what a round may be is the policy's.
class PolicyModel {
 public:
  PolicyModel(const JobPlan& job, uint32_t tensor, const JobLedger& ledger)
      : job_(job),
        tensor_(tensor),
        plan_(job.tensors[tensor]),
        ledger_(ledger),
        chunk_elements_(plan_.GradientElements(ledger.chunk_elements)),
        chunks_(plan_.GradientChunks()) {
    const uint32_t base = ledger.chunk_elements;
    const uint32_t tail = plan_.tail == 0 ? base : std::min(plan_.tail, base);
    count_ = uint64_t{plan_.chunks - 1} * base + tail;
    outcome_.contributions.resize(job.workers, 0);
    velocity_.assign(count_, 0);
  }
  virtual ~PolicyModel() = default;

  ModelOutcome Run() {
    before_ = Version(0);
    if (before_ == nullptr || chunk_elements_ == 0 || before_->size() != count_) return std::move(outcome_);
    uint64_t round = 0;
    for (; outcome_.violations.empty() && (after_ = Version(round + 1)) != nullptr; ++round) {
      if (!TakePart(round)) break;
      if (!CheckRound(round)) {
        Violation("round " + std::to_string(round) + ": no set of contributions explains " + where_);
        break;
      }
      CheckLossReports(round);
      ++outcome_.rounds_checked;
      before_ = after_;
    }
    const auto last = ledger_.versions.upper_bound({tensor_, UINT64_MAX});
    outcome_.complete = std::prev(last)->first.second == round;
    outcome_.gap = outcome_.violations.empty() && Version(round + 1) == nullptr && !outcome_.complete;
    return std::move(outcome_);
  }

 protected:
  // What of a rank may be in one chunk.
  struct Participant {
    const PushRecord* completed = nullptr;
    std::vector<const PushRecord*> perhaps;  // never completed
    uint32_t in = 0;                         // chunks of the completed push
    bool ambiguous = false;                  // cannot be told from the results
  };

  virtual bool CheckRound(uint64_t round) = 0;

  uint64_t First(uint32_t chunk) const { return uint64_t{chunk} * chunk_elements_; }
  uint64_t End(uint32_t chunk) const { return std::min<uint64_t>(count_, First(chunk) + chunk_elements_); }
  double Weight(uint32_t rank) const { return static_cast<double>(job_.weights[rank]); }
  int32_t Gradient(const PushRecord& push, uint64_t e) const {
    return GradientValue(push.id, e, plan_.Gradients());
  }
  void Violation(const std::string& what) {
    outcome_.violations.push_back("tensor " + std::to_string(tensor_) + ": " + what);
  }
  // The mean of this round, as the versions show it, and how far off that may be.
  double SeenMean(uint64_t e) const {
    const double seen = static_cast<double>((*after_)[e]);
    if (!plan_.sgd) return seen;
    const double step = (static_cast<double>((*before_)[e]) - seen) / static_cast<double>(plan_.lr);
    return step - static_cast<double>(plan_.momentum) * velocity_[e];
  }
  double Tolerance(uint64_t e, double mean) const {
    if (!plan_.sgd) return 1e-5 * std::abs(mean) + 1e-4;
    const double old = std::abs(static_cast<double>((*before_)[e])) / static_cast<double>(plan_.lr);
    return 1e-5 * (std::abs(mean) + std::abs(velocity_[e])) + 4e-6 * old + 1e-4;
  }
  void Move(uint64_t e, double mean) {
    velocity_[e] = static_cast<double>(plan_.momentum) * velocity_[e] + mean;
  }
  // A worker has left, joined or come back, or all have: to a server that was started again.
  bool MembersChanged() const {
    return job_.start_workers != 0 || ledger_.server_restarts > 0 || !ledger_.losses.empty() ||
           ledger_.processes.size() > job_.workers ||
           std::ranges::any_of(ledger_.processes,
                               [](const ProcessRecord& p) { return p.killed || !p.failure.ok(); });
  }
  // What the members of a round may weigh together; all workers first.
  std::vector<double> TotalWeights() const {
    const uint32_t everybody = (1u << job_.workers) - 1;
    std::vector<double> weights;
    for (uint32_t members = everybody; members > 0 && (members == everybody || MembersChanged()); --members) {
      double weight = 0;
      for (uint32_t rank = 0; rank < job_.workers; ++rank)
        weight += (members >> rank & 1) != 0 ? Weight(rank) : 0;
      if (std::ranges::find(weights, weight) == weights.end()) weights.push_back(weight);
    }
    return weights;
  }
  std::vector<const PushRecord*> OptionsOf(uint32_t rank, uint32_t chunk) const {
    std::vector<const PushRecord*> options;
    if (who_[rank].completed != nullptr) options.push_back(who_[rank].completed);
    for (const PushRecord* push : who_[rank].perhaps) {
      if (!used_.contains({push, chunk})) options.push_back(push);
    }
    return options;
  }
  void Count(uint32_t rank, uint32_t chunk, const PushRecord* push) {
    if (push != nullptr) ++outcome_.contributions[rank];
    if (push != nullptr && push == who_[rank].completed) ++who_[rank].in;
    if (push != nullptr && push != who_[rank].completed) used_.insert({push, chunk});
  }

  const JobPlan& job_;
  const uint32_t tensor_;
  const TensorPlan& plan_;
  const JobLedger& ledger_;
  const uint32_t chunk_elements_;  // of gradients
  const uint32_t chunks_;
  uint64_t count_ = 0;
  const std::vector<float>* before_ = nullptr;
  const std::vector<float>* after_ = nullptr;
  std::vector<double> velocity_;
  std::vector<Participant> who_;
  std::set<std::pair<const PushRecord*, uint32_t>> used_;
  std::string where_;
  ModelOutcome outcome_;

 private:
  const std::vector<float>* Version(uint64_t v) const {
    const auto found = ledger_.versions.find({tensor_, v});
    return found == ledger_.versions.end() ? nullptr : &found->second.values;
  }
  bool TakePart(uint64_t round) {
    who_.assign(job_.workers, {});
    for (const PushRecord& push : ledger_.pushes) {
      if (push.id.tensor != tensor_ || push.passed_over) continue;
      Participant& participant = who_[push.id.rank];
      const bool completed = push.completed();
      if (completed && push.round == round && participant.completed != nullptr) {
        Violation("two pushes of rank " + std::to_string(push.id.rank) + " were taken into round " +
                  std::to_string(round));
        return false;
      }
      if (completed && push.round == round) participant.completed = &push;
      if (!completed) participant.perhaps.push_back(&push);
    }
    return true;
  }
  void CheckLossReports(uint64_t round) {
    for (uint32_t rank = 0; rank < job_.workers; ++rank) {
      const Participant& participant = who_[rank];
      if (participant.completed == nullptr) continue;
      outcome_.chunks_lost += chunks_ - participant.in;
      outcome_.ambiguous = outcome_.ambiguous || participant.ambiguous;
      if (!participant.perhaps.empty() || participant.ambiguous) continue;
      if (chunks_ - participant.in == participant.completed->lost_chunks) continue;
      Violation("round " + std::to_string(round) + ": rank " + std::to_string(rank) + " was told that " +
                std::to_string(participant.completed->lost_chunks) + " of its chunks were lost, but " +
                std::to_string(chunks_ - participant.in) + " are missing in the result");
    }
  }
};

class ShiftModel final : public PolicyModel {
 public:
  using PolicyModel::PolicyModel;

 private:
  struct Epoch {
    double weight = 0;
    std::vector<double> sum;                          // C
    std::map<ProcessId, std::vector<double>> shifts;  // c_i
  };

  Epoch Begin(double weight) const { return {weight, std::vector<double>(count_, 0), {}}; }

  // One account of what has happened so far. With all workers in a chunk an old epoch and a new one have the
  // same mean: only a later round tells.
  struct Account {
    Epoch epoch;
    std::vector<double> velocity;
    std::set<std::pair<const PushRecord*, uint32_t>> used;
  };
  static constexpr size_t kMostAccounts = 16;

  bool CheckRound(uint64_t round) override {
    std::vector<Account> possible = std::exchange(accounts_, {});
    if (round == 0 || MembersChanged()) {
      const std::vector<double> velocity = possible.empty() ? velocity_ : possible.front().velocity;
      const auto used = possible.empty() ? used_ : possible.front().used;
      for (const double weight : TotalWeights()) possible.push_back({Begin(weight), velocity, used});
    }
    const auto before = std::tuple(who_, outcome_);
    auto first = before;
    for (Account& account : possible) {
      if (accounts_.size() == kMostAccounts) break;
      std::tie(who_, outcome_) = before;
      epoch_ = std::move(account.epoch);
      velocity_ = std::move(account.velocity);
      used_ = std::move(account.used);
      if (!CheckChunks()) continue;
      if (accounts_.empty()) first = std::tuple(who_, outcome_);
      accounts_.push_back({std::move(epoch_), velocity_, used_});
    }
    std::tie(who_, outcome_) = first;
    return !accounts_.empty();
  }

  bool CheckChunks() {
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      if (CheckChunk(chunk)) continue;
      where_ = "chunk " + std::to_string(chunk);
      return false;
    }
    return true;
  }

  // All choices of who is in it, those with more first.
  bool CheckChunk(uint32_t chunk) {
    std::vector<std::vector<const PushRecord*>> options;
    for (uint32_t rank = 0; rank < job_.workers; ++rank) {
      options.push_back(OptionsOf(rank, chunk));
      options.back().push_back(nullptr);
    }
    std::vector<size_t> index(job_.workers, 0);
    for (;;) {
      std::vector<const PushRecord*> in;
      for (uint32_t rank = 0; rank < job_.workers; ++rank) in.push_back(options[rank][index[rank]]);
      if (Fits(chunk, in)) {
        Settle(chunk, in);
        return true;
      }
      uint32_t rank = 0;
      while (rank < job_.workers && ++index[rank] == options[rank].size()) index[rank++] = 0;
      if (rank == job_.workers) return false;
    }
  }

  std::vector<double>& ShiftOf(const PushRecord& push) {
    std::vector<double>& shift = epoch_.shifts[{push.id.rank, push.id.incarnation}];
    if (shift.empty()) shift.assign(count_, 0);
    return shift;
  }
  // Of s_i = g_i - c_i over those who are in.
  double Sum(const std::vector<const PushRecord*>& in, uint64_t e) {
    double sum = 0;
    for (const PushRecord* push : in) {
      if (push != nullptr) sum += Weight(push->id.rank) * (Gradient(*push, e) - ShiftOf(*push)[e]);
    }
    return sum;
  }
  bool Fits(uint32_t chunk, const std::vector<const PushRecord*>& in) {
    for (uint64_t e = First(chunk); e < End(chunk); ++e) {
      const double mean = (epoch_.sum[e] + Sum(in, e)) / epoch_.weight;
      if (std::abs(SeenMean(e) - mean) > Tolerance(e, mean)) return false;
    }
    return true;
  }
  void Settle(uint32_t chunk, const std::vector<const PushRecord*>& in) {
    for (uint64_t e = First(chunk); e < End(chunk); ++e) {
      const double sum = Sum(in, e);
      Move(e, (epoch_.sum[e] + sum) / epoch_.weight);
      epoch_.sum[e] += job_.shift_alpha * sum;
    }
    for (uint32_t rank = 0; rank < job_.workers; ++rank) {
      Count(rank, chunk, in[rank]);
      // Out of a chunk in which it would have said nothing new, or the same as one that is in: who knows.
      if (in[rank] == nullptr) continue;
      std::vector<double>& shift = ShiftOf(*in[rank]);
      bool news = false;
      for (uint64_t e = First(chunk); e < End(chunk); ++e) {
        const double beyond = Gradient(*in[rank], e) - shift[e];
        news = news || std::abs(beyond) > 0.5;
        shift[e] += job_.shift_alpha * beyond;
      }
      who_[rank].ambiguous = who_[rank].ambiguous || !news;
    }
  }

  Epoch epoch_;
  std::vector<Account> accounts_;
};

class IpwModel final : public PolicyModel {
 public:
  using PolicyModel::PolicyModel;

 private:
  static constexpr double kMost = 4;

  bool CheckRound(uint64_t) override {
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      const std::vector<double> weights = TotalWeights();
      if (std::ranges::any_of(weights, [&](double weight) { return CheckChunk(chunk, weight); })) continue;
      where_ = "chunk " + std::to_string(chunk);
      return false;
    }
    return true;
  }

  bool CheckChunk(uint32_t chunk, double weight) {
    std::vector<const PushRecord*> in(job_.workers, nullptr);
    std::vector<double> scales(job_.workers, 0);
    return CheckRank(chunk, weight, 0, in, scales);
  }

  // A rank's marker tells the scale if the push is known: processes that replaced each other have one each.
  bool CheckRank(uint32_t chunk, double weight, uint32_t rank, std::vector<const PushRecord*>& in,
                 std::vector<double>& scales) {
    if (rank == job_.workers) return Fits(chunk, weight, in, scales);
    const uint64_t e = First(chunk) + (rank + kMarkerPeriod - First(chunk) % kMarkerPeriod) % kMarkerPeriod;
    const double counted = SeenMean(e) * weight / Weight(rank);
    const double off = Tolerance(e, SeenMean(e)) * weight / Weight(rank);
    in[rank] = nullptr;
    scales[rank] = 0;
    if (std::abs(counted) <= off) return CheckRank(chunk, weight, rank + 1, in, scales);
    for (const PushRecord* push : OptionsOf(rank, chunk)) {
      in[rank] = push;
      scales[rank] = counted / MarkerValue(push->id.incarnation);
      if (scales[rank] < 1 - off || scales[rank] > kMost + off) continue;
      if (CheckRank(chunk, weight, rank + 1, in, scales)) return true;
    }
    return false;
  }

  bool Fits(uint32_t chunk, double weight, const std::vector<const PushRecord*>& in,
            const std::vector<double>& scales) {
    std::vector<double> means;
    for (uint64_t e = First(chunk); e < End(chunk); ++e) {
      double sum = 0;
      double off = 0;  // of the scales
      for (uint32_t rank = 0; rank < job_.workers; ++rank) {
        if (in[rank] == nullptr) continue;
        const double value = Gradient(*in[rank], e);
        sum += Weight(rank) * scales[rank] * value;
        off += std::abs(value) * Tolerance(e, scales[rank]);
      }
      means.push_back(sum / weight);
      if (std::abs(SeenMean(e) - means.back()) > 3 * Tolerance(e, means.back()) + 3 * off) return false;
    }
    for (uint64_t e = First(chunk); e < End(chunk); ++e) Move(e, SeenMean(e));
    for (uint32_t rank = 0; rank < job_.workers; ++rank) Count(rank, chunk, in[rank]);
    return true;
  }
};

}  // namespace

ModelOutcome CheckShift(const JobPlan& job, uint32_t tensor, const JobLedger& ledger) {
  return ShiftModel(job, tensor, ledger).Run();
}

ModelOutcome CheckIpw(const JobPlan& job, uint32_t tensor, const JobLedger& ledger) {
  return IpwModel(job, tensor, ledger).Run();
}

}  // namespace longhaul::sim
