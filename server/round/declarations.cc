#include "server/round/declarations.h"

#include <utility>

#include "proto/utf8.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;

ControlMessage DeclaredAnswer(uint32_t request, const Status& status) {
  ControlMessage message;
  control::Declared& declared = *message.mutable_declared();
  declared.set_request(request);
  declared.set_code(static_cast<uint32_t>(status.code()));
  declared.set_message(wire::Printable(status.message(), wire::kMaxTextBytes));
  return message;
}

void SetEpoch(const ShiftEpochs& epochs, control::Declared& declared) {
  declared.set_shift_epoch(epochs.epoch());
  declared.set_shift_epoch_round(epochs.change_round());
}

}  // namespace

Declarations::Declarations(const ServerSettings& settings, uint32_t chunk_elements,
                           const Membership* membership, RoundEngineHost* host, TensorJobs* jobs)
    : settings_(settings),
      membership_(membership),
      host_(host),
      jobs_(jobs),
      store_(settings.max_model, chunk_elements),
      memory_(settings, chunk_elements),
      postponed_(settings.world_size, 0) {}

TensorJob* Declarations::OnDeclare(Peer& peer, const control::Declare& declare) {
  const auto refuse = [&](const Status& why) -> TensorJob* {
    host_->Send(peer, DeclaredAnswer(declare.request(), why));
    return nullptr;
  };
  const auto optimizer = codec::ParseOptimizer(declare.optimizer());
  if (!optimizer.ok()) return refuse(optimizer.status());
  if (const Status check = Check(declare, *optimizer); !check.ok()) return refuse(check);
  const TensorSpec spec{.name = declare.name(),
                        .dtype = declare.dtype(),
                        .wire_dtype = static_cast<DType>(declare.wire_dtype()),
                        .result_dtype = static_cast<DType>(declare.result_dtype()),
                        .topk_share = settings_.priority == Priority::kTopK ? settings_.topk_share : 0,
                        .priority = declare.priority(),
                        .count = declare.count(),
                        .optimizer = *optimizer};
  if (const Status memory = TakeMemory(spec); !memory.ok()) return refuse(memory);
  const auto parameters = store_.Declare(spec);
  if (!parameters.ok()) return refuse(parameters.status());
  TensorJob* known = jobs_->Find((*parameters)->key());
  TensorJob& job = known != nullptr ? *known : Add(*parameters);

  const Rounds& rounds = job.tensor.rounds();
  const Rounds::Participation participation = rounds.participation(peer.rank);
  const bool pushed =
      participation == Rounds::Participation::kOpen || participation == Rounds::Participation::kClosed;
  ControlMessage answer = DeclaredAnswer(declare.request(), Status());
  answer.mutable_declared()->set_key((*parameters)->key());
  answer.mutable_declared()->set_next_round(rounds.number() + (pushed || job.late[peer.rank] ? 1 : 0));
  answer.mutable_declared()->set_send_initial(AsksForInitial(job, peer, declare.has_initial()));
  SetEpoch(job.epochs, *answer.mutable_declared());
  job.declared[peer.rank] = true;
  if (!job.late[peer.rank]) {
    host_->Send(peer, answer);
  } else if (postponed_[peer.rank] >= kMaxPostponed) {
    return refuse(
        Status(StatusCode::kResourceExhausted, "too many declarations wait for the end of a round"));
  } else {
    job.postponed_declares.push_back({peer.rank, std::move(answer)});
    ++postponed_[peer.rank];
  }
  return &job;
}

Status Declarations::Check(const control::Declare& declare, const codec::OptimizerSpec& optimizer) const {
  if (declare.dtype() != static_cast<uint32_t>(DType::kFloat32)) {
    return {StatusCode::kInvalidArgument,
            "tensors are float32 in this version, not dtype " + std::to_string(declare.dtype())};
  }
  const auto wire = static_cast<DType>(declare.wire_dtype());
  const auto result = static_cast<DType>(declare.result_dtype());
  if (DTypeSize(wire) == 0 || DTypeSize(result) == 0) {
    return {StatusCode::kInvalidArgument, "unknown element type on the wire"};
  }
  if (result != DType::kFloat32) {
    return {StatusCode::kInvalidArgument,
            "results travel as float32 in this version, not as " + std::string(DTypeName(result))};
  }
  // A lost chunk of an aggregate is not repeated by the next round; only optimizer state is.
  if (settings_.downlink == Downlink::kLossy && optimizer.kind == codec::OptimizerSpec::Kind::kAggregate) {
    return {StatusCode::kInvalidArgument,
            "with a lossy downlink every tensor needs an optimizer at the server: what is lost of a mean "
            "gradient does not come again (use --downlink reliable, or declare an optimizer)"};
  }
  return {};
}

// Takes the memory of a new tensor; nothing for one that exists.
Status Declarations::TakeMemory(const TensorSpec& spec) {
  const Status check = store_.Check(spec);
  if (check.code() == StatusCode::kAlreadyExists) return {};
  return check.ok() ? memory_.Take(spec) : check;
}

TensorJob& Declarations::Add(Parameters* parameters) {
  const auto order = settings_.deterministic ? Aggregator::Order::kRank : Aggregator::Order::kArrival;
  const uint32_t ranks = membership_->world_size();
  TensorJob& job = jobs_->Add(
      std::make_unique<TensorJob>(parameters, ranks, settings_, order, settings_.norm_guard,
                                  Stragglers(settings_.straggler_factor, settings_.round_bound, ranks),
                                  WeightLedger(membership_->WeightTimes(), membership_->stands_for(),
                                               settings_.policy == LossPolicy::kShift)));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (membership_->IsJoined(rank)) job.tensor.rounds().OnMemberJoined(rank);
  }
  job.BeginEpoch(*membership_);
  return job;
}

// Whether this worker is to send the initial values.
bool Declarations::AsksForInitial(TensorJob& job, const Peer& peer, bool has_initial) {
  Parameters& parameters = job.tensor.parameters();
  if (job.HasValues()) return false;
  const bool asked = parameters.initial() == Parameters::Initial::kAwaited;
  if (asked && parameters.initial_sender() != peer.rank) return false;
  if (asked && !has_initial) {
    host_->RequestAbort(
        Status(StatusCode::kAborted, membership_->Describe(peer.rank) +
                                         " came back without the initial values of tensor \"" +
                                         parameters.spec().name + "\" that it had offered"));
    return false;
  }
  // A second declaration of the same incarnation is not asked again; only a newer incarnation is.
  if (asked && job.declared[peer.rank]) return false;
  if (has_initial) parameters.AwaitInitial(peer.rank);
  return has_initial;
}

bool Declarations::StartsAsZeros(const TensorJob& job) const {
  if (job.tensor.parameters().initial() != Parameters::Initial::kNotOffered) return false;
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (membership_->IsJoined(rank) && !job.declared[rank]) return false;
  }
  return true;
}

void Declarations::AnswerPostponed(TensorJob& job) {
  for (PostponedDeclare& postponed : std::exchange(job.postponed_declares, {})) {
    --postponed_[postponed.rank];
    SetEpoch(job.epochs, *postponed.answer.mutable_declared());  // as it is now
    if (Peer* peer = host_->PeerOfRank(postponed.rank)) host_->Send(*peer, postponed.answer);
  }
}

void Declarations::Forget(TensorJob& job, uint32_t rank) {
  job.declared[rank] = false;
  postponed_[rank] -= static_cast<uint32_t>(std::erase_if(
      job.postponed_declares, [rank](const PostponedDeclare& waiting) { return waiting.rank == rank; }));
}

}  // namespace longhaul::server
