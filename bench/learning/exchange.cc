#include "bench/learning/exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "server/member/membership.h"

namespace longhaul::bench {
namespace {

constexpr uint16_t kSymbolBytes = 1392;  // of a datagram of 1452 bytes

Result<codec::WireFormat> FormatOf(const Scenario& scenario) {
  codec::WireFormat format;
  if (scenario.priority == "topk") format.topk_share = scenario.topk_share;
  const auto up = ParseDType(scenario.wire_dtype), down = ParseDType(scenario.result_dtype);
  if (!up) return Status(StatusCode::kInvalidArgument, "unknown wire_dtype " + scenario.wire_dtype);
  if (!down) return Status(StatusCode::kInvalidArgument, "unknown result_dtype " + scenario.result_dtype);
  format.gradient = *up;
  format.result = *down;
  return format;
}

// A geometry of base chunks: those of float32 that fill a packet.
codec::ChunkGeometry BaseOf(uint64_t count) { return {count, codec::ChunkElementsFor(kSymbolBytes)}; }

}  // namespace

Result<std::unique_ptr<Exchange>> Exchange::Create(const Scenario& scenario,
                                                   std::span<const Values> initial) {
  const std::optional<LossPolicy> policy = FromName<LossPolicy>(scenario.policy);
  if (!policy) return Status(StatusCode::kInvalidArgument, "unknown policy " + scenario.policy);
  const Result<codec::OptimizerSpec> optimizer = codec::ParseOptimizer(scenario.OptimizerText());
  if (!optimizer.ok()) return optimizer.status();

  const Result<codec::WireFormat> format = FormatOf(scenario);
  if (!format.ok()) return format.status();
  if (format->topk_share > 0 && !codec::Remembers(*policy)) {
    return Status(StatusCode::kInvalidArgument, "top-k needs a policy that remembers: residual or shift");
  }

  std::unique_ptr<Exchange> exchange(new Exchange());
  exchange->format_ = *format;
  exchange->scenario_ = scenario;
  exchange->job_spec_ = {
      .policy = *policy,
      .shift_alpha = scenario.shift_alpha,
      .priority = format->topk_share > 0 ? Priority::kTopK : Priority::kEnergy,
      .high_share = scenario.high_share,
      .high_energy = scenario.high_energy,
      .lost_energy = scenario.lost_energy,
      .bubble_threshold = scenario.bubble_threshold,
      .staleness = scenario.staleness,
      .aggregation = FromName<Aggregation>(scenario.aggregation).value_or(Aggregation::kMean),
      .seed = scenario.seed};
  if (const Status valid = exchange->job_spec_.Validate(); !valid.ok()) return valid;
  const server::Membership members("bench", scenario.workers, 1, scenario.max_weight_share);
  // The server's half sums in chunks of gradients; how initial values and results are cut does not matter
  // here.
  const uint32_t chunk_elements = codec::GradientGeometry(BaseOf(1), *format).chunk_elements;
  exchange->store_ = std::make_unique<server::ParameterStore>(ByteCount(int64_t{1} << 30), chunk_elements);
  exchange->scratch_.resize(chunk_elements);
  exchange->arrived_.resize(initial.size());
  for (size_t t = 0; t < initial.size(); ++t) {
    server::TensorSpec spec;
    spec.name = "tensor" + std::to_string(t);
    spec.count = initial[t].size();
    spec.optimizer = *optimizer;
    spec.staleness = scenario.staleness;
    const Result<server::Parameters*> declared = exchange->store_->Declare(spec);
    if (!declared.ok()) return declared.status();
    server::Parameters* model = *declared;
    model->AwaitInitial(0);
    for (uint32_t chunk = 0; chunk < model->geometry().chunks(); ++chunk) {
      model->SetInitialChunk(chunk, model->geometry().Elements(std::span(initial[t]), chunk));
    }
    model->SetReady();
    exchange->models_.push_back(model);
    exchange->tensors_.push_back(
        std::make_unique<server::Tensor>(model, scenario.workers, exchange->job_spec_));
    exchange->guards_.emplace_back(exchange->tensors_.back()->chunks(), scenario.workers, scenario.norm_guard,
                                   codec::Repays(*policy));
    exchange->ledgers_.emplace_back(members.WeightTimes(), members.stands_for());
    for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
      exchange->tensors_.back()->rounds().OnMemberJoined(rank);
    }
  }
  Random random = Random(scenario.seed ^ 0x6c6f7373).Fork(1);
  for (uint32_t rank = 0; rank < scenario.workers; ++rank) {
    exchange->workers_.push_back(
        {.connection = {},
         .pipelines = {},
         .losses = wan::LossProcess(scenario.LossOf(rank), scenario.burst, random.Fork(rank)),
         .low_received = std::vector<transport::ChunkBitmap>(initial.size())});
  }
  for (uint32_t rank = 0; rank < scenario.workers; ++rank) exchange->MakeWorkerHalf(rank);
  return exchange;
}

void Exchange::MakeWorkerHalf(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.pipelines.clear();
  for (size_t t = 0; t < tensors_.size(); ++t) {
    worker::PushPipeline::Settings settings;
    static_cast<JobSpec&>(settings) = job_spec_;
    settings.symbol_bytes = kSymbolBytes;
    settings.rank = rank;
    const worker::TensorShape shape{
        .key = static_cast<uint32_t>(t), .geometry = BaseOf(models_[t]->geometry().count), .format = format_};
    worker.pipelines.push_back(std::make_unique<worker::PushPipeline>(shape, settings));
  }
}

void Exchange::Round(const std::vector<std::span<const Values>>& gradients,
                     std::span<const Attendance> attendance) {
  LH_CHECK_OP(gradients.size(), ==, workers_.size());
  LH_CHECK_OP(attendance.size(), ==, workers_.size());
  UpdateMembers(attendance);
  if (new_epoch_) BeginEpoch();
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (attendance[rank] != Attendance::kPresent) continue;
    Send(workers_[rank], gradients[rank]);
    Lose(workers_[rank]);
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    CountWeights(t, attendance);
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (attendance[rank] == Attendance::kGone) continue;
      tensors_[t]->rounds().OnWindowOpened(rank, Instant{});
      if (attendance[rank] == Attendance::kPresent) Deliver(rank, t);
    }
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (attendance[rank] == Attendance::kGone) continue;
      CloseWindow(rank, t, attendance[rank] == Attendance::kPresent);
    }
    ledgers_[t].End();
    tensors_[t]->NextRound();
  }
  ++round_;
}

void Exchange::Step(uint32_t rank, std::span<const Values> gradient) {
  if (new_epoch_) BeginEpoch();
  weights_.assign(workers_.size(), 1.0f);
  Send(workers_[rank], gradient);
  Lose(workers_[rank]);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    tensors_[t]->rounds().OnWindowOpened(rank, Instant{});
    tensors_[t]->BeginPush(rank);
    Deliver(rank, t);
    CloseWindow(rank, t, true);
    tensors_[t]->NextRound();
  }
  ++round_;
}

// All count alike, but for liars.
void Exchange::CountWeights(size_t tensor, std::span<const Attendance> attendance) {
  weights_.assign(workers_.size(), 1.0f);
  if (scenario_.liars == 0 || tensors_[tensor]->aggregator().robust()) return;
  std::vector<bool> members;
  for (const Attendance a : attendance) members.push_back(a != Attendance::kGone);
  server::WeightLedger& ledger = ledgers_[tensor];
  ledger.Begin(members);
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const bool lies = scenario_.attack == "weight" && scenario_.Lies(rank);
    weights_[rank] = ledger.Count(rank, lies ? 1e9f : 1.0f);
  }
}

void Exchange::UpdateMembers(std::span<const Attendance> attendance) {
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    const bool member = attendance[rank] != Attendance::kGone;
    if (member == workers_[rank].member) continue;
    new_epoch_ = true;
    workers_[rank].member = member;
    for (auto& tensor : tensors_) {
      if (member) {
        tensor->rounds().OnMemberJoined(rank);
      } else {
        tensor->rounds().OnMemberGone(rank, tensor->aggregator().contributed(rank));
      }
    }
  }
}

void Exchange::BeginEpoch() {
  new_epoch_ = false;
  double weight = 0;
  for (const Worker& worker : workers_) weight += worker.member ? 1 : 0;
  for (auto& tensor : tensors_) tensor->BeginEpoch(weight);
}

void Exchange::Replace(uint32_t rank) {
  MakeWorkerHalf(rank);
  new_epoch_ = true;
}

void Exchange::Send(Worker& worker, std::span<const Values> gradients) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    worker::PushPipeline& pipeline = *worker.pipelines[t];
    auto everything = WorkBudget::Everything();
    pipeline.Begin(round_, gradients[t], /*wants_result=*/true, tensors_[t]->shift_epoch());
    LH_CHECK(pipeline.Survey(everything));
    LH_CHECK(pipeline.refusal().ok());  // gradients of this model are finite
    transport::WindowOptions options = pipeline.window();
    options.key = {static_cast<uint32_t>(t), 0};
    LH_CHECK(worker.connection.OpenWindow(options).ok());
    LH_CHECK(pipeline.Submit(worker.connection, options.key, everything).ok());
  }
}

void Exchange::Lose(Worker& worker) {
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    for (size_t i = 0; i < worker.connection.window(t).high.size(); ++i) worker.losses.Next();
  }
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    const auto low = static_cast<uint32_t>(worker.connection.window(t).low.size());
    transport::ChunkBitmap received(low);
    for (uint32_t i = 0; i < low; ++i) {
      if (!worker.losses.Next()) received.Set(i);
    }
    stats_.high_chunks += worker.connection.window(t).high.size();
    stats_.low_chunks += low;
    stats_.low_lost += low - received.count();
    worker.low_received[t] = std::move(received);
  }
}

void Exchange::Deliver(uint32_t rank, size_t tensor) {
  const Worker& worker = workers_[rank];
  const CaptureConnection::Window& window = worker.connection.window(static_cast<uint32_t>(tensor));
  for (const CaptureConnection::Chunk& chunk : window.high) AddChunk(rank, *tensors_[tensor], true, chunk);
  for (uint32_t i = 0; i < window.low.size(); ++i) {
    if (worker.low_received[tensor].Test(i)) AddChunk(rank, *tensors_[tensor], false, window.low[i]);
  }
}

void Exchange::AddChunk(uint32_t rank, server::Tensor& tensor, bool high,
                        const CaptureConnection::Chunk& chunk) {
  packet_.assign(chunk.header.begin(), chunk.header.begin() + static_cast<ptrdiff_t>(chunk.header_bytes));
  packet_.insert(packet_.end(), chunk.body.begin(), chunk.body.end());
  const auto view = codec::ParseChunk(packet_);
  LH_CHECK(view.ok());
  const std::span<float> values = std::span(scratch_).first(view->count);
  codec::DecodeChunk(*view, values);
  const float weight = weights_[rank];
  const auto verdict = guards_[tensor.key()].Check(rank, view->index, values,
                                                   weight * tensor.ArrivalScale(rank, high), round_, weight);
  if (verdict != server::ContributionGuard::Verdict::kOk) return;
  LH_CHECK(tensor.Add(rank, high, view->index, values, weight));
  if (!tensor.asynchronous() && tensor.OnContribution(rank, view->index))
    stats_.filled += tensor.Finalise(view->index);
}

void Exchange::CloseWindow(uint32_t rank, size_t t, bool present) {
  server::Tensor& tensor = *tensors_[t];
  Worker& worker = workers_[rank];
  const transport::ChunkBitmap& contributed = tensor.pushed(rank);
  server::Tensor::WindowOutcome over;
  over.weight = weights_[rank];
  over.low_count = worker.low_received[t].size();
  over.low_received = present ? worker.low_received[t].count() : 0;
  // What the guard refused is missing as well.
  const uint32_t low_lost = over.low_count - over.low_received;
  const uint32_t missing = tensor.chunks() - contributed.count();
  over.high_missing = missing - std::min(missing, low_lost);
  tensor.OnWindowOver(rank, over);
  tensor.rounds().OnWindowClosed(rank, contributed);
  FinaliseSwept(tensor);
  if (!present) return;
  worker.pipelines[t]->OnClosed({.high_complete = true, .low = worker.low_received[t], .high = {}}, {});
  auto everything = WorkBudget::Everything();
  LH_CHECK(worker.pipelines[t]->Settle(everything));
}

void Exchange::FinaliseSwept(server::Tensor& tensor) {
  std::vector<uint32_t> ready;
  while (tensor.rounds().HasSweep()) tensor.Sweep(tensor.chunks(), &ready);
  for (const uint32_t chunk : ready) stats_.filled += tensor.Finalise(chunk);
}

}  // namespace longhaul::bench
