#include "worker/site/relay_tensors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/site/site_clock.h"

namespace longhaul::site {
namespace {

using offload::Completion;
using offload::Opcode;
using offload::WorkStatus;

// A site's tensors are declared by its ranks: as many as operations of a client.
constexpr size_t kMostTensors = 4096;
// Ranks that start together pull within this; who pulls later, or again, gets newer values.
constexpr Duration kFetchedIsFresh = std::chrono::seconds(2);

SiteMessage End() {
  SiteMessage message;
  message.kind = SiteKind::kEnd;
  return message;
}

Status NoTensor() { return {StatusCode::kInvalidArgument, "the site's relay knows no such tensor"}; }

Status Broken(const Completion& completion) {
  return {StatusCode::kInternal,
          "the site's engine ended a collective: " + std::string(offload::WorkStatusName(completion.status))};
}

}  // namespace

RelayTensors::~RelayTensors() {
  (void)sums_.GiveBack(mailbox_.device());
  (void)results_.GiveBack(mailbox_.device());
}

// Of a collective, to one of its ranks.
SiteMessage RelayTensors::Answer(SiteKind kind, uint32_t mid, uint64_t ranks, uint8_t rank) const {
  SiteMessage message;
  message.kind = kind;
  message.mid = mid;
  message.ranks = collectives_.SlotsOf(ranks, collectives_.shape().PlaceOf(rank).node);
  message.value = collectives_.NodesOf(ranks);
  return message;
}

uint64_t RelayTensors::RanksOf(const Parts& parts) {
  uint64_t ranks = 0;
  for (const auto& [rank, part] : parts) ranks |= uint64_t{1} << rank;
  return ranks;
}

// --- What is asked ---

void RelayTensors::Take(const SiteMessage& message) {
  if (message.kind == SiteKind::kDeclare) return TakeDeclare(message);
  State* const state = message.tensor < tensors_.size() ? &tensors_[message.tensor] : nullptr;
  if (state == nullptr || !state->tensor) return desk_.End(message.rank, message.seq, NoTensor());
  switch (message.kind) {
    case SiteKind::kStep:
      if (message.ranks != 0) {
        state->again.push_back({message.rank, message.seq, message.ranks - 1, message.value != 0});
      } else {
        state->collecting[message.rank] = {message.seq, message.value != 0};
      }
      break;
    case SiteKind::kPull:
      state->pulls.push_back({message.rank, message.seq, message.value, true});
      break;
    case SiteKind::kScores:
      if (message.value == 0 || message.value > state->options.count) {
        return desk_.End(message.rank, message.seq,
                         {StatusCode::kInvalidArgument, "scores: not 1..count of them"});
      }
      state->scores.push_back({message.rank, message.seq, message.value, false});
      break;
    default:
      return;
  }
  Advance(message.tensor);
}

void RelayTensors::TakeDeclare(const SiteMessage& message) {
  uint32_t index = 0;
  if (const auto known = by_name_.find(message.text); known != by_name_.end()) {
    index = known->second;
  } else if (Status s = AddTensor(message, &index); !s.ok()) {
    return desk_.End(message.rank, message.seq, s);
  }
  State& state = tensors_[index];
  if (state.body != message.body) {
    return desk_.End(message.rank, message.seq,
                     {StatusCode::kSettingsMismatch,
                      "tensor " + state.name + ": another rank of the site has declared it otherwise"});
  }
  if (state.tensor) return EndDeclared(index, message.rank, message.seq);
  state.collecting[message.rank] = {message.seq, message.value != 0};
  Advance(index);
}

Status RelayTensors::AddTensor(const SiteMessage& message, uint32_t* index) {
  const auto options = DecodeOptions(message.body);
  const uint64_t most = mailbox_.device().site().max_message_bytes / sizeof(float);
  if (!options) return {StatusCode::kProtocolViolation, "a declaration that no client writes"};
  if (options->count >= most) {
    return {StatusCode::kInvalidArgument, "tensor " + message.text + ": a site's message has at most " +
                                              std::to_string(most - 1) + " elements (--max-message-bytes)"};
  }
  if (tensors_.size() >= kMostTensors) return {StatusCode::kResourceExhausted, "4096 tensors are declared"};
  State state;
  state.name = message.text;
  state.body = message.body;
  state.options = *options;
  const auto sum = sums_.Take(mailbox_.device(), BytesOf(state, 1));
  const auto result = results_.Take(mailbox_.device(), BytesOf(state));
  if (!sum.ok() || !result.ok()) return sum.ok() ? result.status() : sum.status();
  state.sum = *sum;
  state.result = *result;
  if (zero_bytes_ < BytesOf(state, 1)) {
    const auto zeros = sums_.Take(mailbox_.device(), BytesOf(state, 1));
    if (!zeros.ok()) return zeros.status();
    zeros_ = zeros->slice;
    zero_bytes_ = zeros->memory.size();
  }
  *index = static_cast<uint32_t>(tensors_.size());
  by_name_[state.name] = *index;
  tensors_.push_back(std::move(state));
  return {};
}

void RelayTensors::Forget(uint8_t rank, std::optional<uint64_t> seq) {
  const auto is_it = [rank, seq](const Waiting& w) { return w.rank == rank && (!seq || w.seq == *seq); };
  const auto erase = [rank, seq](Parts& parts) {
    const auto part = parts.find(rank);
    if (part != parts.end() && (!seq || part->second.seq == *seq)) parts.erase(part);
  };
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    State& state = tensors_[index];
    erase(state.collecting);
    std::erase_if(state.pulls, is_it);
    std::erase_if(state.scores, is_it);
    std::erase_if(state.again, is_it);
    if (!state.job) continue;
    erase(state.job->parts);
    std::erase_if(state.job->again, is_it);
    if (state.job->taking && state.job->parts.empty()) Finish(index);
  }
}

// --- One thing at a time ---

bool RelayTensors::AllAreIn(const State& state) const {
  return desk_.complete() && !state.collecting.empty() && (desk_.here() & ~RanksOf(state.collecting)) == 0;
}

void RelayTensors::ShowMissing(const State& state) {
  const uint64_t missing = desk_.missing_at_start() | (desk_.here() & ~RanksOf(state.collecting));
  for (const auto& [rank, part] : state.collecting) desk_.SetMissing(rank, part.seq, missing);
}

void RelayTensors::AdvanceAll() {
  for (uint32_t index = 0; index < tensors_.size(); ++index) Advance(index);
}

void RelayTensors::Advance(uint32_t index) {
  State& state = tensors_[index];
  ShowMissing(state);
  if (state.job || client_ == nullptr) return;
  if (!state.scores.empty()) return SetScores(index);
  if (!state.again.empty() && desk_.complete()) return AskWhatCameOf(index);
  if (AllAreIn(state)) {
    state.job.emplace(Job{}).parts = std::move(state.collecting);
    state.collecting.clear();
    return state.tensor ? Sum(index) : Declare(index);
  }
  if (!state.pulls.empty()) Fetch(index);
}

void RelayTensors::Finish(uint32_t index) {
  tensors_[index].job.reset();
  Advance(index);
}

void RelayTensors::EndJob(uint32_t index, const Status& outcome) {
  // The end of the client ends what is under way when SiteLeader::Look says so: a successor may have its
  // place.
  if (MayGoOn(outcome)) return;
  const Job& job = *tensors_[index].job;
  for (const auto& [rank, part] : job.parts) desk_.End(rank, part.seq, outcome);
  for (const Waiting& step : job.again) desk_.End(step.rank, step.seq, outcome);
  Finish(index);
}

void RelayTensors::OnFailed(uint32_t index, const Completion& completion, uint64_t ranks,
                            std::function<void()> anew) {
  const SiteShape& shape = collectives_.shape();
  if (completion.status == WorkStatus::kTimeout) {
    // Of this node; another's end by their silence.
    const uint64_t late =
        shape.SlotsOf(ranks & desk_.here(), collectives_.own().node) & completion.missing_ranks;
    for (uint8_t slot = 0; slot < shape.ranks_per_node; ++slot) {
      if ((late >> slot & 1) == 0) continue;
      const uint8_t rank = shape.IndexOf({collectives_.own().node, slot});
      drop_(rank, {StatusCode::kPeerDead, NamesOf(uint64_t{1} << rank) + " did not answer in time"});
    }
  }
  if ((ranks & ~desk_.here()) != 0) return anew();
  Job& job = *tensors_[index].job;
  const bool elsewhere = shape.nodes > 1 && (completion.status == WorkStatus::kTimeout ||
                                             completion.status == WorkStatus::kPeerDead ||
                                             completion.status == WorkStatus::kCancelled);
  job.failing = std::min(job.failing, Now());
  if (!elsewhere || Now() - job.failing > patience_) return EndJob(index, Broken(completion));
  retries_.push_back(std::move(anew));
}

void RelayTensors::Retry() {
  std::vector<std::function<void()>> retries;
  retries.swap(retries_);
  for (const auto& anew : retries) anew();
}

void RelayTensors::Upload(uint32_t index, uint8_t rank, uint64_t elements, std::function<void()> then) {
  collectives_.Queue([this, index, rank, elements, then = std::move(then)] {
    State& state = tensors_[index];
    const auto part = state.job->parts.find(rank);
    // Of initial values, those of another rank.
    if (part == state.job->parts.end()) return state.tensor ? Finish(index) : Declare(index);
    const uint64_t ranks = uint64_t{1} << rank;
    const uint32_t mid = collectives_.Begin({Opcode::kBroadcast,
                                             collectives_.shape().PlaceOf(rank),
                                             ranks,
                                             elements * sizeof(float),
                                             {},
                                             state.sum.slice},
                                            [this, index, rank, elements, ranks, then](const Completion& c) {
                                              if (c.status == WorkStatus::kSuccess) return then();
                                              OnFailed(index, c, ranks, [this, index, rank, elements, then] {
                                                Upload(index, rank, elements, then);
                                              });
                                            });
    desk_.Answer(rank, part->second.seq, Answer(SiteKind::kUpload, mid, ranks, rank));
  });
}

// --- Declarations ---

void RelayTensors::Declare(uint32_t index) {
  const Parts& parts = tensors_[index].job->parts;
  if (parts.empty()) return Finish(index);
  const auto giver = std::ranges::find_if(parts, [](const auto& part) { return part.second.wants; });
  if (giver == parts.end()) return AskServer(index, false);
  Upload(index, giver->first, tensors_[index].options.count, [this, index] { AskServer(index, true); });
}

void RelayTensors::AskServer(uint32_t index, bool with_values) {
  State& state = tensors_[index];
  TensorOptions options = state.options;
  if (with_values) options.initial = state.sum.floats(options.count);
  const bool asked = aside_.Run([this, client = client_, index, name = state.name, options] {
    auto tensor = std::make_shared<Result<Tensor>>(client->Declare(name, options));
    aside_.Done([this, index, tensor] { OnDeclared(index, *tensor); });
  });
  if (!asked) EndJob(index, {StatusCode::kResourceExhausted, "the site has no thread for the declaration"});
}

void RelayTensors::OnDeclared(uint32_t index, const Result<Tensor>& tensor) {
  State& state = tensors_[index];
  if (!tensor.ok()) return EndJob(index, tensor.status());
  state.tensor = *tensor;
  // Also of ranks that came while the server was asked: what is collected from now on are steps.
  state.job->parts.merge(std::exchange(state.collecting, {}));
  for (const auto& [rank, part] : state.job->parts) EndDeclared(index, rank, part.seq);
  Finish(index);
}

void RelayTensors::EndDeclared(uint32_t index, uint8_t rank, uint64_t seq) {
  const Arena::Piece& result = tensors_[index].result;
  SiteMessage end = End();
  end.tensor = index;
  end.body = EncodePlace({result.arena, result.arena_bytes, result.slice.offset});
  desk_.Answer(rank, seq, std::move(end));
}

// --- Steps ---

void RelayTensors::Sum(uint32_t index) {
  collectives_.Queue([this, index] {
    State& state = tensors_[index];
    const Parts& parts = state.job->parts;
    if (parts.empty()) return Finish(index);
    const uint64_t ranks = RanksOf(parts);
    const uint32_t mid = collectives_.Begin(
        {Opcode::kReduce, collectives_.own(), ranks, BytesOf(state, 1), zeros_, state.sum.slice},
        [this, index, ranks](const Completion& c) { OnSum(index, c, ranks); });
    for (const auto& [rank, part] : parts) {
      desk_.Answer(rank, part.seq, Answer(SiteKind::kGo, mid, ranks, rank));
    }
  });
}

void RelayTensors::OnSum(uint32_t index, const Completion& completion, uint64_t ranks) {
  if (completion.status == WorkStatus::kSuccess) return Push(index);
  OnFailed(index, completion, ranks, [this, index] { Sum(index); });
}

void RelayTensors::Push(uint32_t index) {
  State& state = tensors_[index];
  const std::span<float> sum = state.sum.floats(state.options.count + 1);
  const float weight = sum.back();
  if (!(weight > 0) || !std::isfinite(weight)) {
    return EndJob(index, {StatusCode::kInvalidArgument, "the weights of the site's ranks have no sum"});
  }
  const std::span<float> mean = sum.first(state.options.count);
  for (float& value : mean) value /= weight;
  PushOptions options;
  if (client_->settings().policy != LossPolicy::kShift)
    options.weight = std::clamp(weight, kMinWeight, kMaxWeight);
  const bool wants =
      std::ranges::any_of(state.job->parts, [](const auto& part) { return part.second.wants; });
  AwaitServer(index, wants ? client_->PushPull(*state.tensor, mean, state.result.floats(mean.size()), options)
                           : client_->Push(*state.tensor, mean, options));
}

void RelayTensors::AwaitServer(uint32_t index, const Operation& operation) {
  operation.Then([this, index, operation](const Status& outcome) {
    aside_.Done([this, index, outcome, stats = operation.stats()] { OnServer(index, outcome, stats); });
  });
}

void RelayTensors::OnServer(uint32_t index, const Status& outcome, const OperationStats& stats) {
  State& state = tensors_[index];
  Job& job = *state.job;
  if (!job.again.empty() && outcome.code() == StatusCode::kFailedPrecondition) {
    // Without an optimizer nothing is kept that could be asked for.
    SplitAgain(state, 0);
    return Finish(index);
  }
  if (!outcome.ok()) return EndJob(index, outcome);
  job.stats = stats;
  const bool values =
      job.fetch || std::ranges::any_of(job.parts, [](const auto& p) { return p.second.wants; });
  state.fetched = {values, stats.round + (job.fetch ? 0 : 1), Now(), 0};
  if (!job.again.empty()) SplitAgain(state, stats.round);
  GiveOut(index);
}

// To those that want values; the others are done.
void RelayTensors::GiveOut(uint32_t index) {
  State& state = tensors_[index];
  std::erase_if(state.job->parts, [this, &state](const auto& part) {
    if (part.second.wants) return false;
    SiteMessage end = End();
    end.body = EncodeStats(state.job->stats);
    desk_.Answer(part.first, part.second.seq, std::move(end));
    return true;
  });
  Deliver(index);
}

void RelayTensors::Deliver(uint32_t index) {
  collectives_.Queue([this, index] {
    State& state = tensors_[index];
    const Parts& parts = state.job->parts;
    if (parts.empty()) return Finish(index);
    const uint64_t ranks = RanksOf(parts);
    state.fetched.served |= ranks;
    const uint32_t mid =
        collectives_.Begin({Opcode::kBroadcast, collectives_.own(), ranks, BytesOf(state), state.result.slice,
                            state.result.slice},
                           [this, index, ranks](const Completion& c) { OnDelivered(index, c, ranks); });
    for (const auto& [rank, part] : parts) {
      SiteMessage deliver = Answer(SiteKind::kDeliver, mid, ranks, rank);
      deliver.body = EncodeStats(state.job->stats);
      desk_.Answer(rank, part.seq, std::move(deliver));
    }
  });
}

void RelayTensors::OnDelivered(uint32_t index, const Completion& completion, uint64_t ranks) {
  if (completion.status != WorkStatus::kSuccess) {
    return OnFailed(index, completion, ranks, [this, index] { Deliver(index); });
  }
  Job& job = *tensors_[index].job;
  job.taking = true;
  if (job.parts.empty()) Finish(index);
}

// --- Pulls and scores ---

void RelayTensors::Fetch(uint32_t index) {
  State& state = tensors_[index];
  Job& job = state.job.emplace(Job{});
  job.fetch = true;
  const Fetched& fetched = state.fetched;
  const bool fresh = fetched.valid && Now() - fetched.at <= kFetchedIsFresh;
  const auto has = [&](const Waiting& w) {
    return fresh && w.value <= fetched.version && (fetched.served >> w.rank & 1) == 0;
  };
  const bool cached = std::ranges::any_of(state.pulls, has);
  const uint64_t min_round = state.pulls.front().value;
  std::erase_if(state.pulls, [&](const Waiting& w) {
    // One of a rank at a time.
    if ((cached ? !has(w) : w.value > min_round) || job.parts.contains(w.rank)) return false;
    job.parts[w.rank] = {w.seq, true};
    return true;
  });
  job.stats.round = fetched.version;
  if (cached) return Deliver(index);
  AwaitServer(index, client_->Pull(*state.tensor, state.result.floats(state.options.count),
                                   {.min_round = min_round}));
}

// The values say how many rounds are in them.
void RelayTensors::AskWhatCameOf(uint32_t index) {
  State& state = tensors_[index];
  Job& job = state.job.emplace(Job{});
  job.fetch = true;
  job.again = std::move(state.again);
  state.again.clear();
  const Fetched& fetched = state.fetched;
  const auto has = [&fetched](const Waiting& step) { return fetched.valid && step.value < fetched.version; };
  if (!std::ranges::all_of(job.again, has)) {
    return AwaitServer(index, client_->Pull(*state.tensor, state.result.floats(state.options.count), {}));
  }
  SplitAgain(state, fetched.version);
  GiveOut(index);
}

void RelayTensors::SplitAgain(State& state, uint64_t rounds) {
  Job& job = *state.job;
  for (const Waiting& step : std::exchange(job.again, {})) {
    const bool counted = step.value < rounds;
    (counted ? job.parts : state.collecting)[step.rank] = {step.seq, step.wants};
  }
  job.stats.round = rounds - std::min<uint64_t>(rounds, 1);  // the last one that has ended
}

void RelayTensors::SetScores(uint32_t index) {
  State& state = tensors_[index];
  const Waiting what = state.scores.front();
  state.scores.pop_front();
  state.job.emplace(Job{}).parts[what.rank] = {what.seq, false};
  Upload(index, what.rank, what.value, [this, index, what] {
    State& of = tensors_[index];
    EndJob(index, client_->SetScores(*of.tensor, of.sum.floats(what.value)));
  });
}

}  // namespace longhaul::site
