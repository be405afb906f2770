#include "tests/sim/round_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "tests/sim/policy_models.h"

namespace longhaul::sim {
namespace {

// Of a float: what two roundings are off by at most.
constexpr double kUlp = 1.2e-7;

// Pushes of one process (by sequence number) whose values travel as one contribution.
using Bundle = std::vector<uint32_t>;

// What a rank may have contributed to one chunk of one round.
struct Option {
  const PushRecord* push = nullptr;  // null: nothing is in
  Bundle bundle = {};
  int64_t marker = 0;
  // Without a contribution: does the rank count in the divisor, and was its loss above the threshold?
  bool counts = false;
  bool filled = false;
};

struct Choice {
  std::vector<const Option*> by_rank;
  double divisor = 0;
  double filled = 0;  // weight
};

class TensorModel {
 public:
  TensorModel(const JobPlan& job, uint32_t job_index, uint32_t tensor, const JobLedger& ledger);
  ModelOutcome Run();

 private:
  // One process' books: what may still wait to be repaid, by chunk; several possibilities when a fault has
  // left it open, else one.
  struct Books {
    std::vector<std::vector<Bundle>> waiting;
  };
  using ProcessId = std::pair<uint32_t, uint64_t>;  // rank, incarnation

  // Who takes part in a round.
  struct Participant {
    const PushRecord* completed = nullptr;   // its window was taken
    std::vector<const PushRecord*> perhaps;  // never completed: may be in, as far as it came
    uint32_t not_in = 0;                     // chunks without the completed push
    bool may_count = false;                  // it passed a push over that it had sent to a server that died
    std::vector<uint32_t> superseded;        // of them, those in which another process of the rank is
  };

  uint64_t First(uint32_t chunk) const { return uint64_t{chunk} * chunk_elements_; }
  uint64_t End(uint32_t chunk) const { return std::min<uint64_t>(count_, First(chunk) + chunk_elements_); }
  uint64_t MarkerOf(uint32_t rank, uint32_t chunk) const {
    return First(chunk) + (rank + period_ - First(chunk) % period_) % period_;
  }
  uint32_t LowChunks() const;
  bool IsAdam() const { return plan_.sgd && plan_.adam != TensorPlan::Adam::kNo; }
  bool Repays() const { return job_.policy == LossPolicy::kResidual; }
  Books& BooksOf(const PushRecord& push);

  void CheckInitial();
  bool Participants(uint64_t round, std::vector<Participant>* who);
  // What the process has passed over before its push of this round waits to be repaid from now on.
  void OwePassedOver(const std::vector<const PushRecord*>& pushes, uint64_t round);
  std::vector<Option> OptionsOf(const Participant& who, uint32_t chunk);
  bool CheckChunk(uint64_t round, uint32_t chunk, std::vector<Participant>& who);
  Choice Weigh(const std::vector<std::vector<Option>>& options, const std::vector<size_t>& index) const;
  bool MarkerFits(const Choice& choice, uint32_t chunk, uint32_t rank, const Option& option) const;
  bool MarkersFit(const Choice& choice, uint32_t chunk) const;
  bool PickEach(uint32_t chunk, const std::vector<std::vector<Option>>& options, Choice* choice) const;
  bool AllFits(const Choice& choice, uint32_t chunk);
  double Mean(const Choice& choice, uint64_t element) const;
  bool Fits(const Choice& choice, uint64_t element, double mean) const;
  struct Moments {
    double mean = 0;
    double square = 0;
    double size = 0;  // of what the mean is a sum of
  };
  Moments AdamMoments(uint64_t element, double mean) const;
  bool FitsAdam(uint64_t element, double mean) const;
  void Settle(uint32_t chunk, const Choice& choice, std::vector<Participant>& who);
  std::string Explain(uint64_t round, uint32_t chunk, const std::vector<std::vector<Option>>& options) const;
  void SettleSuperseded(uint64_t round, const Participant& participant);
  void CheckLossReports(uint64_t round, const std::vector<Participant>& who);
  void CheckResiduals();
  void Violation(const std::string& what);

  const JobPlan& job_;
  uint32_t job_index_;
  uint32_t tensor_;
  const TensorPlan& plan_;
  const JobLedger& ledger_;
  const uint32_t period_;    // of the markers
  uint32_t chunk_elements_;  // of gradients
  uint32_t chunks_;
  uint64_t count_ = 0;
  std::map<ProcessId, std::vector<const PushRecord*>> pushes_;  // in order
  std::map<ProcessId, Books> books_;
  std::set<std::pair<const PushRecord*, uint32_t>> used_;  // pushes that never completed, by chunk
  std::set<const PushRecord*> owed_;                       // passed over
  uint64_t round_ = 0;                                     // that is being checked
  std::vector<double> velocity_;                           // Adam: the mean gradient
  std::vector<double> mean_square_;
  std::vector<double> previous_mean_;
  const std::vector<float>* before_ = nullptr;
  const std::vector<float>* after_ = nullptr;
  ModelOutcome outcome_;
};

TensorModel::TensorModel(const JobPlan& job, uint32_t job_index, uint32_t tensor, const JobLedger& ledger)
    : job_(job),
      job_index_(job_index),
      tensor_(tensor),
      plan_(job.tensors[tensor]),
      ledger_(ledger),
      period_(plan_.Gradients().period()),
      chunk_elements_(plan_.GradientElements(ledger.chunk_elements)),
      chunks_(plan_.GradientChunks()) {
  const uint32_t base = ledger.chunk_elements;
  const uint32_t tail = plan_.tail == 0 ? base : std::min(plan_.tail, base);
  count_ = uint64_t{plan_.chunks - 1} * base + tail;
  outcome_.contributions.resize(job.workers, 0);
  for (const PushRecord& push : ledger.pushes) {
    if (push.id.tensor == tensor) pushes_[{push.id.rank, push.id.incarnation}].push_back(&push);
  }
}

void TensorModel::Violation(const std::string& what) {
  outcome_.violations.push_back("tensor " + std::to_string(tensor_) + ": " + what);
}

uint32_t TensorModel::LowChunks() const {
  if (chunks_ <= 4) return 0;
  const double high = std::ceil(job_.high_share * chunks_);
  return chunks_ - static_cast<uint32_t>(std::min<double>(high, chunks_));
}

TensorModel::Books& TensorModel::BooksOf(const PushRecord& push) {
  Books& books = books_[{push.id.rank, push.id.incarnation}];
  if (books.waiting.empty()) books.waiting.assign(chunks_, {Bundle()});
  return books;
}

ModelOutcome TensorModel::Run() {
  const auto version = [&](uint64_t v) {
    const auto found = ledger_.versions.find({tensor_, v});
    return found == ledger_.versions.end() ? nullptr : &found->second.values;
  };
  before_ = version(0);
  if (before_ == nullptr || count_ == 0) return std::move(outcome_);
  if (before_->size() != count_) {
    Violation("version 0 has another length than declared");
    return std::move(outcome_);
  }
  CheckInitial();
  velocity_.assign(count_, 0);
  mean_square_.assign(IsAdam() ? count_ : 0, 0);
  previous_mean_.assign(count_, 0);
  uint64_t round = 0;
  for (; outcome_.violations.empty() && (after_ = version(round + 1)) != nullptr; ++round) {
    round_ = round;
    std::vector<Participant> who;
    if (!Participants(round, &who)) break;
    // The size of an Adam step hardly tells how many are in it: where that is open, nothing can be said.
    const bool open =
        std::ranges::any_of(who, [](const Participant& p) { return !p.perhaps.empty() || p.may_count; });
    if (IsAdam() && open) {
      outcome_.ambiguous = true;
      break;
    }
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      if (!CheckChunk(round, chunk, who)) return std::move(outcome_);
    }
    for (const Participant& participant : who) {
      if (Repays() && !participant.superseded.empty()) SettleSuperseded(round, participant);
    }
    CheckLossReports(round, who);
    ++outcome_.rounds_checked;
    before_ = after_;
  }
  const auto last = ledger_.versions.upper_bound({tensor_, UINT64_MAX});
  outcome_.complete = std::prev(last)->first.second == round;
  outcome_.gap = outcome_.violations.empty() && version(round + 1) == nullptr && !outcome_.complete;
  if (outcome_.violations.empty() && outcome_.complete) CheckResiduals();
  return std::move(outcome_);
}

// Zeros, or the values of exactly one of the workers that offered some.
void TensorModel::CheckInitial() {
  if (!plan_.sgd || plan_.initial_offers == 0) {
    if (std::ranges::any_of(*before_, [](float v) { return v != 0; })) Violation("version 0 is not zero");
    return;
  }
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    if ((plan_.initial_offers >> rank & 1) == 0) continue;
    bool same = true;
    for (uint64_t e = 0; e < count_ && same; ++e) {
      same = (*before_)[e] == static_cast<float>(InitialValue(job_index_, tensor_, rank, e));
    }
    if (same) return;
  }
  // A worker that dies before it has declared the tensor has offered nothing.
  const std::string declaration = "declare tensor" + std::to_string(tensor_);
  const bool offered = std::ranges::any_of(ledger_.operations, [&](const OperationRecord& operation) {
    const bool offers = (plan_.initial_offers >> operation.rank & 1) != 0;
    return offers && operation.what == declaration && operation.ends > 0 && operation.outcome.ok();
  });
  if (!offered && std::ranges::all_of(*before_, [](float v) { return v == 0; })) return;
  Violation("version 0 is nobody's offer of initial values");
}

void TensorModel::OwePassedOver(const std::vector<const PushRecord*>& pushes, uint64_t round) {
  for (const PushRecord* push : pushes) {
    const bool completed = push->completed();
    if (!completed || (!push->passed_over && push->round >= round)) return;
    if (!push->passed_over || !owed_.insert(push).second) continue;
    outcome_.chunks_lost += chunks_;
    if (!Repays()) continue;
    for (std::vector<Bundle>& waiting : BooksOf(*push).waiting) {
      for (Bundle& bundle : waiting) bundle.push_back(push->id.sequence);
    }
  }
}

bool TensorModel::Participants(uint64_t round, std::vector<Participant>* who) {
  who->assign(job_.workers, {});
  for (const auto& [process, pushes] : pushes_) {
    Participant& participant = (*who)[process.first];
    OwePassedOver(pushes, round);
    for (const PushRecord* push : pushes) {
      if (push->passed_over) {
        // A round in which none of its chunks arrived has it in the divisor, and keeps nothing of it.
        participant.may_count |= push->round == round && ledger_.server_restarts > 0;
        continue;
      }
      const bool completed = push->completed();
      if (completed && push->round == round) {
        if (participant.completed != nullptr) {
          Violation("two pushes of rank " + std::to_string(process.first) + " were taken into round " +
                    std::to_string(round));
          return false;
        }
        participant.completed = push;
      } else if (!completed) {
        participant.perhaps.push_back(push);
      }
    }
  }
  return true;
}

std::vector<Option> TensorModel::OptionsOf(const Participant& who, uint32_t chunk) {
  std::vector<Option> options;
  const auto add = [&](const PushRecord& push) {
    for (const Bundle& waiting : BooksOf(push).waiting[chunk]) {
      Option option;
      option.push = &push;
      option.bundle = waiting;
      option.bundle.push_back(push.id.sequence);
      option.marker = static_cast<int64_t>(option.bundle.size()) * MarkerValue(push.id.incarnation);
      options.push_back(std::move(option));
    }
  };
  if (who.completed != nullptr) add(*who.completed);
  for (const PushRecord* push : who.perhaps) {
    if (!used_.contains({push, chunk})) add(*push);
  }
  // And what else may be: nothing of it is in.
  if (who.completed != nullptr) {
    const uint32_t low = LowChunks();
    const double loss = low == 0 ? 0 : static_cast<double>(who.completed->lost_chunks) / low;
    options.push_back({.counts = true, .filled = loss > job_.bubble_threshold});
    // A successor's window may have lost more than counted here, when its predecessor was in some chunks; and
    // this model cannot know what a window that a round did not wait for has lost of its high class.
    if (!who.perhaps.empty() || job_.LeavesOut())
      options.push_back({.counts = true, .filled = loss <= job_.bubble_threshold});
  } else {
    options.push_back({});
    if (!who.perhaps.empty() || who.may_count || job_.LeavesOut()) {
      options.push_back({.counts = true, .filled = false});
      options.push_back({.counts = true, .filled = true});
    }
  }
  return options;
}

Choice TensorModel::Weigh(const std::vector<std::vector<Option>>& options,
                          const std::vector<size_t>& index) const {
  Choice choice;
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    const Option& option = options[rank][index[rank]];
    choice.by_rank.push_back(&option);
    const double weight = job_.weights[rank];
    if (option.push != nullptr) {
      choice.divisor += weight;
    } else if (option.counts) {
      if (!option.filled || job_.policy != LossPolicy::kCount) choice.divisor += weight;
      if (option.filled) choice.filled += weight;
    }
  }
  return choice;
}

double TensorModel::Mean(const Choice& choice, uint64_t element) const {
  if (choice.divisor == 0) return 0;
  double sum = 0;
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    const Option& option = *choice.by_rank[rank];
    if (option.push == nullptr) continue;
    GradientId id = option.push->id;
    int64_t values = 0;
    for (const uint32_t sequence : option.bundle) {
      id.sequence = sequence;
      values += GradientValue(id, element, plan_.Gradients());
    }
    sum += static_cast<double>(job_.weights[rank]) * static_cast<double>(values);
  }
  double mean = sum / choice.divisor;
  if (job_.policy == LossPolicy::kStale)
    mean += previous_mean_[element] * 0.9 * choice.filled / choice.divisor;
  return mean;
}

bool TensorModel::Fits(const Choice& choice, uint64_t element, double mean) const {
  const double seen = static_cast<double>((*after_)[element]);
  if (!plan_.sgd) {
    // Sums are integers: with a power of two as divisor nothing is rounded. A stale mean may cancel out.
    const auto divisor = static_cast<uint32_t>(choice.divisor);
    const bool stale = job_.policy == LossPolicy::kStale;
    if (!stale && (divisor & (divisor - 1)) == 0) return seen == mean;
    return std::abs(seen - mean) <= 1e-6 * std::abs(mean) + (stale ? 1e-4 : 1e-6);
  }
  if (IsAdam()) return FitsAdam(element, mean);
  const double old = static_cast<double>((*before_)[element]);
  const double velocity = static_cast<double>(plan_.momentum) * velocity_[element] + mean;
  const double step = static_cast<double>(plan_.lr) * velocity;
  const double scale = std::abs(step) + std::abs(static_cast<double>(plan_.lr) * mean);
  const double cancelled = job_.policy == LossPolicy::kStale ? 1e-4 * static_cast<double>(plan_.lr) : 0;
  // A velocity that has cancelled out keeps the rounding of what it was: an ulp of values below 128. The old
  // value was seen as it is, and the new one is rounded once: with more for it the marker of one among 58
  // ranks would be lost in a value above 1,000 (seed 2001486).
  return std::abs(seen - (old - step)) <= 4e-6 * scale + kUlp * std::abs(old) + cancelled + 1e-5;
}

TensorModel::Moments TensorModel::AdamMoments(uint64_t element, double mean) const {
  const double old = static_cast<double>((*before_)[element]);
  const double gradient = mean + (plan_.adam == TensorPlan::Adam::kL2 ? plan_.weight_decay * old : 0);
  return {.mean = plan_.beta1 * velocity_[element] + (1 - plan_.beta1) * gradient,
          .square = plan_.beta2 * mean_square_[element] + (1 - plan_.beta2) * gradient * gradient,
          .size = plan_.beta1 * std::abs(velocity_[element]) + (1 - plan_.beta1) * std::abs(gradient)};
}

// Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2.
bool TensorModel::FitsAdam(uint64_t element, double mean) const {
  constexpr double kEps = 1e-8;
  const double old = static_cast<double>((*before_)[element]);
  const Moments moments = AdamMoments(element, mean);
  const auto t = static_cast<double>(round_ + 1);
  const double root = std::sqrt(moments.square / (1 - std::pow(plan_.beta2, t))) + kEps;
  const double rate = static_cast<double>(plan_.lr) / (1 - std::pow(plan_.beta1, t)) / root;
  const bool decoupled = plan_.adam == TensorPlan::Adam::kDecoupled;
  const double kept = decoupled ? old * (1 - static_cast<double>(plan_.lr) * plan_.weight_decay) : old;
  const double off = 4e-6 * (std::abs(old) + rate * moments.size) + 1e-6;
  return std::abs(static_cast<double>((*after_)[element]) - (kept - rate * moments.mean)) <= off;
}

bool TensorModel::MarkerFits(const Choice& choice, uint32_t chunk, uint32_t rank,
                             const Option& option) const {
  const uint64_t element = MarkerOf(rank, chunk);
  const double marker = static_cast<double>(job_.weights[rank]) * static_cast<double>(option.marker);
  double mean = choice.divisor == 0 ? 0 : marker / choice.divisor;
  if (job_.policy == LossPolicy::kStale && choice.divisor > 0) {
    mean += previous_mean_[element] * 0.9 * choice.filled / choice.divisor;
  }
  return Fits(choice, element, mean);
}

bool TensorModel::MarkersFit(const Choice& choice, uint32_t chunk) const {
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    if (!MarkerFits(choice, chunk, rank, *choice.by_rank[rank])) return false;
  }
  return true;
}

// In a large job, where all weigh the same: with the divisor given, every rank's marker tells by itself what
// of it is in. Where nothing is, and it is open whether the rank counts, so many do as the divisor needs.
bool TensorModel::PickEach(uint32_t chunk, const std::vector<std::vector<Option>>& options,
                           Choice* choice) const {
  const double weight = static_cast<double>(job_.weights.front());
  for (uint32_t members = job_.workers + 1; members-- > 0;) {
    *choice = {.by_rank = {}, .divisor = weight * members};
    std::vector<const Option*> instead(job_.workers);  // the one that does not count, of those that are open
    uint32_t in = 0;
    bool all = true;
    for (uint32_t rank = 0; rank < job_.workers && all; ++rank) {
      const auto pick = [&](bool counts) -> const Option* {
        const auto found = std::ranges::find_if(options[rank], [&](const Option& option) {
          return (option.push != nullptr || option.counts) == counts &&
                 MarkerFits(*choice, chunk, rank, option);
        });
        return found == options[rank].end() ? nullptr : &*found;
      };
      const Option* counting = pick(true);
      instead[rank] = pick(false);
      all = counting != nullptr || instead[rank] != nullptr;
      in += counting != nullptr ? 1 : 0;
      choice->by_rank.push_back(counting != nullptr ? counting : instead[rank]);
    }
    for (uint32_t rank = 0; rank < job_.workers && all && in > members; ++rank) {
      if (instead[rank] == nullptr || choice->by_rank[rank] == instead[rank]) continue;
      choice->by_rank[rank] = instead[rank];
      --in;
    }
    if (all && in == members) return true;
  }
  return false;
}

bool TensorModel::AllFits(const Choice& choice, uint32_t chunk) {
  std::vector<double> means;
  for (uint64_t e = First(chunk); e < End(chunk); ++e) {
    means.push_back(Mean(choice, e));
    if (!Fits(choice, e, means.back())) return false;
  }
  for (uint64_t e = First(chunk); e < End(chunk); ++e) {
    const double mean = means[e - First(chunk)];
    previous_mean_[e] = mean;
    if (IsAdam()) {
      const Moments moments = AdamMoments(e, mean);
      velocity_[e] = moments.mean;
      mean_square_[e] = moments.square;
    } else {
      velocity_[e] = static_cast<double>(plan_.momentum) * velocity_[e] + mean;
    }
  }
  return true;
}

bool TensorModel::CheckChunk(uint64_t round, uint32_t chunk, std::vector<Participant>& who) {
  std::vector<std::vector<Option>> options;
  for (const Participant& participant : who) options.push_back(OptionsOf(participant, chunk));
  if (Choice choice; job_.workers > kMaxRanks) {
    if (PickEach(chunk, options, &choice) && AllFits(choice, chunk)) {
      Settle(chunk, choice, who);
      return true;
    }
    Violation(Explain(round, chunk, options));
    return false;
  }
  std::vector<size_t> index(job_.workers, 0);
  for (;;) {
    const Choice choice = Weigh(options, index);
    if (MarkersFit(choice, chunk) && AllFits(choice, chunk)) {
      Settle(chunk, choice, who);
      return true;
    }
    uint32_t rank = 0;
    while (rank < job_.workers && ++index[rank] == options[rank].size()) index[rank++] = 0;
    if (rank == job_.workers) break;
  }
  Violation(Explain(round, chunk, options));
  return false;
}

std::string TensorModel::Explain(uint64_t round, uint32_t chunk,
                                 const std::vector<std::vector<Option>>& options) const {
  double weights = 0;
  for (const float weight : job_.weights) weights += static_cast<double>(weight);
  std::ostringstream out;
  out << "round " << round << " chunk " << chunk
      << ": no set of contributions, each in at most once, explains it;";
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    const uint64_t e = MarkerOf(rank, chunk);
    const double old = static_cast<double>((*before_)[e]);
    const double seen = static_cast<double>((*after_)[e]);
    const double mean = plan_.sgd ? (old - seen) / static_cast<double>(plan_.lr) -
                                        static_cast<double>(plan_.momentum) * velocity_[e]
                                  : seen;
    out << " rank " << rank << " is in it " << mean * weights / static_cast<double>(job_.weights[rank])
        << " times, possible were";
    for (const Option& option : options[rank]) {
      out << " " << option.marker << (option.push != nullptr ? "" : option.counts ? "(lost)" : "(absent)");
    }
    out << ";";
  }
  return out.str();
}

void TensorModel::Settle(uint32_t chunk, const Choice& choice, std::vector<Participant>& who) {
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    Participant& participant = who[rank];
    const Option& option = *choice.by_rank[rank];
    if (option.push != nullptr) {
      ++outcome_.contributions[rank];
      outcome_.chunks_repaid += option.bundle.size() - 1;
      if (option.push != participant.completed) used_.insert({option.push, chunk});
    }
    if (participant.completed == nullptr) continue;
    std::vector<Bundle>& waiting = BooksOf(*participant.completed).waiting[chunk];
    if (option.push == participant.completed) {
      waiting = {Bundle()};
      continue;
    }
    ++participant.not_in;
    ++outcome_.chunks_lost;
    if (!Repays()) continue;
    for (Bundle& bundle : waiting) bundle.push_back(participant.completed->id.sequence);
    if (option.push != nullptr) {
      // Its predecessor's contribution was in already: dropped if it arrived, lost otherwise
      // (SettleSuperseded).
      participant.superseded.push_back(chunk);
      waiting.push_back(Bundle());
    }
  }
}

// A rank counts once in a round: where its predecessor's contribution was in, the worker owes nothing of what
// arrived. What it was told tells how many of these chunks it believes lost; only low ones can have been, as
// long as windows wait for their high class.
void TensorModel::SettleSuperseded(uint64_t round, const Participant& participant) {
  const PushRecord& push = *participant.completed;
  const auto superseded = static_cast<uint32_t>(participant.superseded.size());
  const uint32_t nobodys = participant.not_in - superseded;
  const uint32_t owed = push.lost_chunks - std::min(push.lost_chunks, nobodys);
  const uint32_t may_be_lost = job_.MayLackHigh() ? superseded : std::min(superseded, LowChunks());
  if (push.lost_chunks < nobodys || owed > may_be_lost) {
    Violation("round " + std::to_string(round) + ": rank " + std::to_string(push.id.rank) +
              " was told that " + std::to_string(push.lost_chunks) +
              " of its chunks were lost; nobody's are " + std::to_string(nobodys) +
              ", its predecessor is in " + std::to_string(superseded) + ", and at most " +
              std::to_string(may_be_lost) + " of those can be lost");
  }
  for (const uint32_t chunk : participant.superseded) {
    std::vector<Bundle>& waiting = BooksOf(push).waiting[chunk];
    if (owed == 0) waiting = {Bundle()};
    if (owed == superseded) waiting.pop_back();
  }
}

// What the workers were told about losses is what is missing in the result.
void TensorModel::CheckLossReports(uint64_t round, const std::vector<Participant>& who) {
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    const Participant& participant = who[rank];
    if (participant.completed == nullptr || !participant.perhaps.empty()) continue;
    if (participant.not_in == participant.completed->lost_chunks) continue;
    Violation("round " + std::to_string(round) + ": rank " + std::to_string(rank) + " was told that " +
              std::to_string(participant.completed->lost_chunks) + " of its chunks were lost, but " +
              std::to_string(participant.not_in) + " are missing in the result");
  }
}

// Conservation: what is not in any version is still with the worker, to the last bit.
void TensorModel::CheckResiduals() {
  for (const auto& [process, pushes] : pushes_) OwePassedOver(pushes, UINT64_MAX);
  for (const ResidualRecord& residual : ledger_.residuals) {
    if (residual.tensor != tensor_ || residual.values.empty()) continue;
    if (residual.values.size() != count_) return Violation("a residual has another length than its tensor");
    PushRecord push;
    push.id = {job_index_, tensor_, residual.rank, residual.incarnation, 0};
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      const bool explained = std::ranges::any_of(BooksOf(push).waiting[chunk], [&](const Bundle& bundle) {
        for (uint64_t e = First(chunk); e < End(chunk); ++e) {
          int64_t sum = 0;
          for (const uint32_t sequence : bundle) {
            push.id.sequence = sequence;
            sum += GradientValue(push.id, e, plan_.Gradients());
          }
          if (residual.values[e] != static_cast<float>(sum)) return false;
        }
        return true;
      });
      if (explained) continue;
      std::ostringstream out;
      out << "rank " << residual.rank << " incarnation " << residual.incarnation << " chunk " << chunk
          << ": applied plus held back is not what was produced; marker of what is held back: "
          << residual.values[MarkerOf(residual.rank, chunk)];
      return Violation(out.str());
    }
  }
}

}  // namespace

ModelOutcome CheckTensor(const JobPlan& job, uint32_t job_index, uint32_t tensor, const JobLedger& ledger) {
  if (job.IsTopK() || job.IsOfSteps()) return CheckSums(job, job_index, tensor, ledger);
  if (job.policy == LossPolicy::kShift) return CheckShift(job, tensor, ledger);
  if (job.policy == LossPolicy::kIpw) return CheckIpw(job, tensor, ledger);
  return TensorModel(job, job_index, tensor, ledger).Run();
}

}  // namespace longhaul::sim
