#include "tests/server/lossy_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace longhaul::server {
namespace {

codec::ChunkGeometry GeometryOf(Random& random) {
  return {.count = 1 + random.Below(24), .chunk_elements = 1 + static_cast<uint32_t>(random.Below(4))};
}

template <typename T>
void Shuffle(std::vector<T>* items, Random& random) {
  for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[random.Below(i)]);
}

}  // namespace

LossyRounds::LossyRounds(const Options& options)
    : options_(options),
      random_(options.seed),
      geometry_(GeometryOf(random_)),
      ranks_(2 + static_cast<uint32_t>(random_.Below(5))),
      store_(ByteCount(4096), geometry_.chunk_elements),
      parameters_(*store_.Declare({.name = "w", .dtype = 0, .count = geometry_.count, .optimizer = {}})),
      tensor_(parameters_, ranks_, options.job_spec,
              random_.Chance(0.5) ? Aggregator::Order::kArrival : Aggregator::Order::kRank),
      residual_checker_(geometry_, options.integers),
      shift_checker_(geometry_, options.job_spec.shift_alpha, options.integers, options.quantum / 2),
      closed_(ranks_, false) {
  parameters_->SetReady();
  for (uint32_t rank = 0; rank < ranks_; ++rank) Join(rank);
  BeginEpoch();
}

float LossyRounds::Gradient() {
  if (options_.integers) return static_cast<float>(random_.Below(17)) - 8.0f;
  return static_cast<float>(3 * random_.Normal());
}

// Once per run.
bool LossyRounds::Injects(Fault fault, double chance) {
  if (options_.fault != fault || faulty_ || !random_.Chance(chance)) return false;
  faulty_ = true;
  return true;
}

void LossyRounds::Join(uint32_t rank) {
  auto process = std::make_unique<Process>();
  process->id = next_process_++;
  process->rank = rank;
  process->weight =
      options_.integers ? static_cast<float>(1u << rank % 3) : 0.5f + 0.7f * static_cast<float>(rank);
  process->memory = codec::MakeSenderMemory(options_.job_spec, geometry_);
  process->behind = Shifts();
  members_[rank] = std::move(process);
  EXPECT_TRUE(tensor_.rounds().OnMemberJoined(rank));
  members_changed_ = true;
}

void LossyRounds::ChangeMembers() {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!members_.contains(rank)) {
      if (random_.Chance(0.3)) Join(rank);
    } else if (members_.size() > 1 && random_.Chance(0.02)) {
      residual_checker_.OnGone(Of(rank).id, static_cast<double>(Of(rank).weight));
      tensor_.rounds().OnMemberGone(rank, tensor_.aggregator().contributed(rank));
      EXPECT_FALSE(tensor_.rounds().HasSweep());
      members_.erase(rank);
      members_changed_ = true;
    }
  }
}

// Of the shifts, on both sides. Some workers hear of it only after they have sent one gradient more.
void LossyRounds::BeginEpoch() {
  members_changed_ = false;
  in_epoch_.clear();
  double total = 0;
  std::map<uint32_t, double> weights;
  for (auto& [rank, process] : members_) {
    weights[rank] = static_cast<double>(process->weight);
    total += weights[rank];
    in_epoch_.insert(process->id);
    process->behind = tensor_.rounds().number() > 0 && random_.Chance(0.2);
    if (!process->behind) process->memory->BeginEpoch();
  }
  tensor_.BeginEpoch(total);
  shift_checker_.BeginEpoch(weights);
}

Violation LossyRounds::Round() {
  ChangeMembers();
  // A change is announced first: for some rounds the old epoch goes on, in which who left counts as expected
  // and who is new is not listened to.
  if (members_changed_ && random_.Chance(0.6)) BeginEpoch();
  loss_ = 0.6 * random_.Uniform();
  std::vector<Event> events = std::exchange(late_, {});
  for (auto& [rank, process] : members_) {
    tensor_.rounds().OnWindowOpened(rank, Instant());
    Begin(*process, &events);
    if (random_.Chance(0.3)) events.push_back({.kind = Event::Kind::kClose, .process = process->id});
    if (random_.Chance(0.01)) events.push_back({.kind = Event::Kind::kLeave, .process = process->id});
    if (random_.Chance(0.01)) events.push_back({.kind = Event::Kind::kReplace, .process = process->id});
  }
  while (!events.empty()) {
    Shuffle(&events, random_);
    std::vector<Event> more;
    for (const Event& event : events) Play(event, &more);
    events = std::move(more);
  }
  while (!open_.empty()) Close(open_.begin()->first);
  return Finish();
}

// The process' window: what it sends, and what of it arrives, in time or too late.
void LossyRounds::Begin(Process& process, std::vector<Event>* events) {
  open_[process.rank] = process.id;
  process.gradient.resize(geometry_.count);
  for (float& value : process.gradient) value = Gradient();
  const std::span<const float> prepared = process.memory->Prepare(process.gradient);
  process.sent.assign(prepared.begin(), prepared.end());
  if (options_.quantum > 0) {
    const auto quantum = static_cast<float>(options_.quantum);
    for (float& value : process.sent) value = quantum * std::round(value / quantum);
  }
  process.counted.assign(geometry_.chunks(), false);
  process.dropped.assign(geometry_.chunks(), false);
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) {
    if (random_.Chance(loss_)) continue;
    const std::span<const float> values = geometry_.Elements(std::span<const float>(process.sent), chunk);
    const Event event{.process = process.id,
                      .round = tensor_.rounds().number(),
                      .chunk = chunk,
                      .values = {values.begin(), values.end()}};
    for (int copies = random_.Chance(0.15) ? 2 : 1; copies > 0; --copies) {
      (random_.Chance(0.05) ? &late_ : events)->push_back(event);
    }
  }
}

void LossyRounds::Play(const Event& event, std::vector<Event>* more) {
  if (event.kind == Event::Kind::kChunk) return Arrive(event);
  const auto window = std::ranges::find(open_, event.process, [](const auto& entry) { return entry.second; });
  if (window == open_.end()) return;  // closed, or its process is dead
  const uint32_t rank = window->first;
  if (event.kind == Event::Kind::kClose) Close(rank);
  if (event.kind == Event::Kind::kLeave && members_.size() > 1) Leave(rank);
  if (event.kind == Event::Kind::kReplace) Replace(rank, more);
}

void LossyRounds::Arrive(const Event& event) {
  const auto window = std::ranges::find(open_, event.process, [](const auto& entry) { return entry.second; });
  if (window == open_.end() || event.round != tensor_.rounds().number()) {
    ++late_dropped_;
    // As if the round number were not checked: it takes the place of this round's contribution.
    if (window != open_.end() && event.values[0] != 0 && !in_.contains({window->first, event.chunk}) &&
        Injects(Fault::kLateCounts, 0.5)) {
      Count(window->first, event.chunk, event.values);
    }
    return;
  }
  const uint32_t rank = window->first;
  Process& process = Of(rank);
  const std::span<const float> shift = process.memory->shift();
  // Far enough from the new epoch's zero not to pass for quantisation.
  const bool outdated = !shift.empty() && std::abs(shift[geometry_.First(event.chunk)]) > options_.quantum;
  if (process.behind && !(outdated && Injects(Fault::kMissedEpoch, 1))) return;  // refused
  std::vector<float> values = event.values;
  if (!in_.contains({rank, event.chunk}) && values[0] != 0 && Injects(Fault::kDoubled, 0.2)) {
    for (float& value : values) value *= 2;
  }
  if (Count(rank, event.chunk, values)) {
    process.counted[event.chunk] = true;
  } else {
    process.dropped[event.chunk] = !process.counted[event.chunk];
    ++duplicates_dropped_;
  }
}

bool LossyRounds::Count(uint32_t rank, uint32_t chunk, const std::vector<float>& values) {
  const bool fresh = in_.insert({rank, chunk}).second;
  EXPECT_EQ(tensor_.Add(rank, random_.Chance(0.3), chunk, values, Of(rank).weight), fresh);
  if (!fresh) return false;
  if (tensor_.OnContribution(rank, chunk)) tensor_.Finalise(chunk);
  return true;
}

// The close tells the worker, chunk by chunk, what counted.
void LossyRounds::Close(uint32_t rank) {
  Process& process = Of(rank);
  open_.erase(rank);
  closed_[rank] = true;
  const auto counted = static_cast<uint32_t>(std::ranges::count(process.counted, true));
  tensor_.OnWindowOver(rank,
                       {.weight = process.weight, .low_count = geometry_.chunks(), .low_received = counted});
  tensor_.rounds().OnWindowClosed(rank, tensor_.aggregator().contributed(rank));
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) {
    const std::span<const float> sent = geometry_.Elements(std::span<const float>(process.sent), chunk);
    bool taken = process.counted[chunk] || process.dropped[chunk];
    if (process.dropped[chunk] && sent[0] != 0 && Injects(Fault::kDroppedOwed, 1)) {
      taken = false;
    } else if (sent[0] != 0 && !process.behind &&
               Injects(taken ? Fault::kLostThoughSettled : Fault::kSettledThoughLost, 0.2)) {
      taken = !taken;
    }
    process.memory->SettleChunk(chunk, taken, sent);
  }
  process.memory->Finish();
  FinaliseSwept();
}

void LossyRounds::Leave(uint32_t rank) {
  open_.erase(rank);
  members_changed_ = true;
  Of(rank).gone = true;
  dead_.push_back(std::move(members_[rank]));
  members_.erase(rank);
  tensor_.rounds().OnMemberGone(rank, tensor_.aggregator().contributed(rank));
  FinaliseSwept();
}

// A new incarnation of the rank pushes in the same round. What its predecessor had delivered stays in.
void LossyRounds::Replace(uint32_t rank, std::vector<Event>* more) {
  members_changed_ = true;
  auto successor = std::make_unique<Process>();
  successor->id = next_process_++;
  successor->rank = rank;
  successor->weight = Of(rank).weight;
  // Its shift is not the one that C holds for this rank.
  successor->behind = Shifts();
  successor->memory = codec::MakeSenderMemory(options_.job_spec, geometry_);
  Of(rank).gone = true;
  dead_.push_back(std::move(members_[rank]));
  members_[rank] = std::move(successor);
  EXPECT_TRUE(tensor_.rounds().OnMemberReplaced(rank));
  tensor_.rounds().OnWindowOpened(rank, Instant());
  Begin(Of(rank), more);
}

void LossyRounds::FinaliseSwept() {
  while (tensor_.rounds().HasSweep()) {
    std::vector<uint32_t> ready;
    tensor_.Sweep(1 + random_.Below(3), &ready);  // whatever a slice holds
    for (const uint32_t chunk : ready) tensor_.Finalise(chunk);
  }
}

Violation LossyRounds::Finish() {
  if (!tensor_.rounds().AllFinal()) return "a chunk is not final though nobody is awaited";
  tensor_.NextRound();
  RoundRecord record;
  record.closed = closed_;
  record.mean.assign(parameters_->current().begin(), parameters_->current().end());
  const auto add = [&](const Process& process) {
    record.parts.push_back({.process = process.id,
                            .rank = process.rank,
                            .weight = static_cast<double>(process.weight),
                            .gone = process.gone,
                            .behind = process.behind,
                            .gradient = process.gradient,
                            .sent = process.sent,
                            .counted = process.counted,
                            .dropped = process.dropped,
                            .memory = process.gone ? nullptr : process.memory.get()});
  };
  for (const auto& process : dead_) add(*process);
  for (const auto& [rank, process] : members_) add(*process);
  const Violation violation =
      Shifts() ? shift_checker_.Check(record, tensor_.shift_sum()) : residual_checker_.Check(record);
  dead_.clear();
  in_.clear();
  closed_.assign(ranks_, false);
  for (auto& [rank, process] : members_) {
    if (process->behind) process->memory->BeginEpoch();
    process->behind = Shifts() && !in_epoch_.contains(process->id);
  }
  return violation;
}

}  // namespace longhaul::server
