#include "server/round/declarations.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "codec/fec/erasure_coder.h"
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

// "25.0 %".
std::string Percent(double share) {
  const auto tenths = std::llround(share * 1000);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " %";
}

void SetEpoch(const ShiftEpochs& epochs, control::Declared& declared) {
  declared.set_shift_epoch(epochs.epoch());
  declared.set_shift_epoch_round(epochs.change_round());
}

// What a worker that comes back needs to know of its push that was on its way.
void SetCounted(const TensorJob& job, uint32_t rank, uint64_t session, control::Declared& declared) {
  declared.set_has_values(job.tensor.parameters().initial() == Parameters::Initial::kReady);
  const Counted& counted = job.counted[rank];
  // A push of steps that is under way comes again, and what is in of it does not count again
  // (Intake::OpenStep).
  const bool under_way = job.tensor.asynchronous() && job.push_session[rank] == session;
  if (under_way || !counted.IsOf(session)) return;
  declared.set_has_counted(true);
  declared.set_counted_round(counted.round);
  if (counted.chunks.size() <= wire::kMaxCountedBytes)
    declared.set_counted_chunks(counted.chunks.data(), counted.chunks.size());
}

}  // namespace

Declarations::Declarations(const ServerSettings& settings, uint32_t chunk_elements,
                           const Membership* membership, RoundEngineHost* host, TensorJobs* jobs,
                           ImageKeeper* images)
    : settings_(settings),
      membership_(membership),
      host_(host),
      jobs_(jobs),
      images_(images),
      chunk_elements_(chunk_elements),
      store_(settings.max_model, chunk_elements),
      memory_(settings, chunk_elements),
      held_(settings.world_size),
      postponed_(settings.world_size, 0),
      charged_(settings.world_size, 0) {}

Declarations::Declared Declarations::OnDeclare(Peer& peer, const control::Declare& declare, Instant now) {
  now_ = now;
  const HeldDeclarations::Request request{peer.rank, declare.request(), declare.has_initial()};
  Declared declared;
  const auto refuse = [&](const Status& why) {
    Refuse(request, why);
    return declared;
  };
  const auto optimizer = settings_.rules.Parse(declare.optimizer());
  if (!optimizer.ok()) return refuse({StatusCode::kInvalidArgument, optimizer.status().message()});
  JobSpec consistency = settings_;
  if (declare.has_topk_share()) {
    consistency.priority = Priority::kTopK;
    consistency.topk_share = declare.topk_share();
  }
  if (declare.has_staleness()) consistency.staleness = declare.staleness();
  if (declare.has_quorum()) consistency.quorum = declare.quorum();
  if (const Status check = Check(declare, *optimizer, consistency); !check.ok()) return refuse(check);
  const TensorSpec spec{.name = declare.name(),
                        .dtype = declare.dtype(),
                        .wire_dtype = static_cast<DType>(declare.wire_dtype()),
                        .result_dtype = static_cast<DType>(declare.result_dtype()),
                        .topk_share = consistency.priority == Priority::kTopK ? consistency.topk_share : 0,
                        .priority = declare.priority(),
                        .staleness = consistency.staleness,
                        .quorum = consistency.quorum,
                        .count = declare.count(),
                        .optimizer = *optimizer};
  const Status check = store_.Check(spec);
  if (check.code() == StatusCode::kAlreadyExists) {
    TensorJob& job = *jobs_->Find((*store_.Declare(spec))->key());
    if (Accept(job, request)) declared.push_back(&job);
  } else if (!check.ok()) {
    const bool full = check.code() == StatusCode::kResourceExhausted;
    return refuse({check.code(), check.message() + (full ? GreediestBut(peer.rank) : "")});
  } else if (Status blocks = CheckBlocks(spec); !blocks.ok()) {
    return refuse(blocks);
  } else if (Status image = CheckImage(spec); !image.ok()) {
    return refuse(image);
  } else if (Status memory = memory_.Check(spec); !memory.ok()) {
    return refuse({memory.code(), memory.message() + GreediestBut(peer.rank)});
  } else if (Status held = held_.Add(spec, Cost(spec), request, now); !held.ok()) {
    return refuse(held);
  }
  AdmitHeld(&declared);
  if (held_.Has(spec.name)) ++held_back_;
  return declared;
}

void Declarations::Refuse(const HeldDeclarations::Request& request, const Status& why) {
  if (Peer* peer = host_->PeerOfRank(request.rank)) host_->Send(*peer, DeclaredAnswer(request.request, why));
}

// --- What one member may take alone ---

double Declarations::Cost(const TensorSpec& spec) const {
  const double elements = static_cast<double>(settings_.max_model.value()) / sizeof(float);
  return std::max({1.0 / ParameterStore::kMaxTensors, static_cast<double>(spec.count) / elements,
                   static_cast<double>(memory_.Plan(spec)) / static_cast<double>(memory_.total())});
}

double Declarations::Part() const {
  constexpr double kRounding = 1e-9;
  return std::max(1.0 / settings_.world_size, kLeastPart) + kRounding;
}

void Declarations::AdmitHeld(Declared* declared) {
  const double part = Part();
  const auto admissible = [&](const HeldDeclarations::Held& held) {
    return Majority(held.requests.size()) || charged_[held.requests.front().rank] + held.cost <= part;
  };
  while (const auto held = held_.Take(admissible)) Create(*held, declared);
}

void Declarations::Create(const HeldDeclarations::Held& held, Declared* declared) {
  const auto made = Make(held.spec);
  const uint32_t first = held.requests.front().rank;
  if (!made.ok()) {
    const Status why(made.status().code(), made.status().message() + GreediestBut(first));
    for (const auto& request : held.requests) Refuse(request, why);
    return;
  }
  TensorJob& job = **made;
  job.first_declarer = first;
  job.charged = held.cost;
  charged_[first] += held.cost;
  for (const auto& request : held.requests) (void)Accept(job, request);
  declared->push_back(&job);
}

bool Declarations::Accept(TensorJob& job, const HeldDeclarations::Request& request) {
  const uint32_t rank = request.rank;
  const Rounds& rounds = job.tensor.rounds();
  const Rounds::Participation participation = rounds.participation(rank);
  const bool pushed =
      participation == Rounds::Participation::kOpen || participation == Rounds::Participation::kClosed;
  ControlMessage answer = DeclaredAnswer(request.request, Status());
  answer.mutable_declared()->set_key(job.tensor.key());
  answer.mutable_declared()->set_next_round(rounds.number() + (pushed || job.late[rank] ? 1 : 0));
  answer.mutable_declared()->set_send_initial(AsksForInitial(job, rank, request.has_initial));
  SetEpoch(job.epochs, *answer.mutable_declared());
  SetCounted(job, rank, membership_->member(rank).session, *answer.mutable_declared());
  job.declared[rank] = true;
  if (job.charged > 0 && Majority(static_cast<size_t>(std::ranges::count(job.declared, true)))) {
    charged_[job.first_declarer] -= std::exchange(job.charged, 0);
  }
  // Its push has counted, and was not acknowledged: it is further ahead than it may be (Steps::Answer).
  if (answer.declared().has_counted() && job.tensor.asynchronous() && !job.clocks.MayGoOn(rank)) {
    job.finished.push_back(
        {.state = FinishedPush::State::kHeld, .rank = rank, .taken = std::move(answer), .held_since = now_});
    return true;
  }
  if (!job.late[rank]) {
    if (Peer* peer = host_->PeerOfRank(rank)) host_->Send(*peer, answer);
  } else if (postponed_[rank] >= kMaxPostponed) {
    Refuse(request,
           Status(StatusCode::kResourceExhausted, "too many declarations wait for the end of a round"));
    return false;
  } else {
    job.postponed_declares.push_back({rank, std::move(answer)});
    ++postponed_[rank];
  }
  return true;
}

std::string Declarations::GreediestBut(uint32_t rank) const {
  uint32_t greediest = rank;
  for (uint32_t other = 0; other < charged_.size(); ++other) {
    if (other != rank && charged_[other] > (greediest == rank ? 0 : charged_[greediest])) greediest = other;
  }
  if (greediest == rank) return "";
  return "; " + membership_->Describe(greediest) + " holds " + Percent(charged_[greediest]) +
         " of what a job may have with tensors that most have not declared";
}

Wait Declarations::HeldWait(const HeldDeclarations::Held& held) const {
  Wait wait{.what = "the declaration of tensor \"" + held.spec.name + "\" by " +
                    membership_->Describe(held.requests.front().rank) + ", beyond its part,",
            .missing = {},
            .since = held.since};
  for (uint32_t rank = 0; rank < membership_->world_size(); ++rank) {
    if (membership_->IsJoined(rank) && !held.Has(rank)) wait.missing.push_back(rank);
  }
  return wait;
}

std::optional<Wait> Declarations::LongestWait() const {
  const HeldDeclarations::Held* held = held_.MostWanted();
  return held == nullptr ? std::nullopt : std::optional(HeldWait(*held));
}

bool Declarations::GiveUp(Peer& peer, uint32_t request) {
  const auto end = [&](const std::string& why) {
    host_->Send(peer, DeclaredAnswer(request, Status(StatusCode::kDeadlineExceeded, why)));
    return true;
  };
  if (const auto held = held_.GiveUp(peer.rank, request)) {
    const Wait wait = HeldWait(*held);
    return end(wait.what + " waits for " + membership_->Names(wait.missing) +
               " to declare the same: one worker alone may take no more than " + Percent(Part()) +
               " of what a job may have");
  }
  for (const auto& job : *jobs_) {
    const bool gave_up =
        std::erase_if(job->postponed_declares, [&](const PostponedDeclare& postponed) {
          return postponed.rank == peer.rank && postponed.answer.declared().request() == request;
        }) > 0;
    if (!gave_up) continue;
    --postponed_[peer.rank];
    return end("round " + std::to_string(job->tensor.rounds().number()) + " of tensor \"" +
               job->tensor.parameters().spec().name + "\", which is to end first, is not over");
  }
  return false;
}

Status Declarations::Check(const control::Declare& declare, const codec::OptimizerSpec& optimizer,
                           const JobSpec& consistency) const {
  const auto of_tensor = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "tensor \"" + declare.name() + "\": " + why);
  };
  if (Status valid = consistency.Validate(); !valid.ok()) return of_tensor(valid.message());
  if (consistency.quorum > settings_.world_size) {
    return of_tensor("no quorum of " + std::to_string(consistency.quorum) + " is in a job of " +
                     std::to_string(settings_.world_size));
  }
  // A step of one worker has that worker's gradient for a mean.
  if (consistency.staleness != 0 && optimizer.aggregates()) {
    return of_tensor("staleness " + std::to_string(consistency.staleness) +
                     " needs an optimizer at the server: every push is a step of its own");
  }
  if (consistency.staleness != 0 && !optimizer.takes_parts()) {
    return of_tensor("staleness " + std::to_string(consistency.staleness) +
                     " needs an optimizer that makes "
                     "steps of some of the workers, which " +
                     std::string(optimizer.name()) + " does not");
  }
  if (declare.dtype() != static_cast<uint32_t>(DType::kFloat32)) {
    return {StatusCode::kInvalidArgument,
            "tensors are float32 in this version, not dtype " + std::to_string(declare.dtype())};
  }
  const auto wire = static_cast<DType>(declare.wire_dtype());
  const auto result = static_cast<DType>(declare.result_dtype());
  if (DTypeBits(wire) == 0 || DTypeBits(result) == 0) {
    return {StatusCode::kInvalidArgument, "unknown element type on the wire"};
  }
  // Workers would have to agree on scales, and parameters have no residual that repays what int8 loses.
  if (DTypeBits(result) < 16) {
    return {StatusCode::kInvalidArgument,
            "results travel as float32, bfloat16 or float16, not as " + std::string(DTypeName(result))};
  }
  // A lost chunk of an aggregate is not repeated by the next round; only optimizer state is.
  if (settings_.downlink == Downlink::kLossy && optimizer.aggregates()) {
    return {StatusCode::kInvalidArgument,
            "with a lossy downlink every tensor needs an optimizer at the server: what is lost of a mean "
            "gradient does not come again (use --downlink reliable, or declare an optimizer)"};
  }
  return {};
}

// A repair symbol names its source block with 16 bits (wire::DataHeader).
Status Declarations::CheckBlocks(const TensorSpec& spec) const {
  const uint64_t chunks = (spec.count + chunk_elements_ - 1) / chunk_elements_;
  const uint64_t k = codec::BlockSizeFor(settings_.fec_k, static_cast<uint32_t>(chunks));
  if (k == 0 || (chunks + k - 1) / k <= UINT16_MAX) return {};
  return {StatusCode::kResourceExhausted,
          "tensor \"" + spec.name + "\" has more than " + std::to_string(UINT16_MAX) + " FEC blocks of " +
              std::to_string(k) + " chunks; declare it in parts, or take a larger --fec-k"};
}

Status Declarations::CheckImage(const TensorSpec& spec) const {
  const TensorImage* const image = images_ != nullptr ? images_->Find(spec.name) : nullptr;
  if (image == nullptr) return {};
  // A learning rate may change from one run to the next; what the optimizer keeps may not.
  std::vector<std::string> kept;
  for (const auto& array : image->state) kept.push_back(array.name);
  if (image->count == spec.count && kept == codec::StateNames(spec.optimizer)) return {};
  const auto keeps = [](const std::vector<std::string>& arrays) {
    std::string text;
    for (const std::string& name : arrays) text += (text.empty() ? ", which keeps " : ", ") + name;
    return text;
  };
  return {StatusCode::kSettingsMismatch, "tensor \"" + spec.name + "\" is declared as " + spec.ToString() +
                                             keeps(codec::StateNames(spec.optimizer)) +
                                             " here, but the server's checkpoint has it as float32[" +
                                             std::to_string(image->count) + "], " + image->optimizer +
                                             keeps(kept) + " (another --checkpoint-dir begins anew)"};
}

// The plan first, so that most of what does not fit is refused without asking the machine for it.
Result<TensorJob*> Declarations::Make(const TensorSpec& spec) {
  if (Status room = store_.Check(spec); !room.ok()) return room;
  if (Status memory = memory_.Take(spec); !memory.ok()) return memory;
  const size_t before = store_.size();
  try {
    return &Add(*store_.Declare(spec));
  } catch (const std::bad_alloc&) {
    if (store_.size() > before) store_.Undeclare();
    memory_.Return(spec);
    return Status(StatusCode::kResourceExhausted,
                  "tensor \"" + spec.name + "\" does not fit: it may take the server " +
                      std::to_string(memory_.Plan(spec)) +
                      " bytes, and the server's machine has not so much left (" +
                      std::to_string(memory_.total() - memory_.taken()) + " bytes were planned to be)");
  }
}

TensorJob& Declarations::Add(Parameters* parameters) {
  const auto order = settings_.deterministic ? Aggregator::Order::kRank : Aggregator::Order::kArrival;
  const uint32_t ranks = membership_->world_size();
  auto job = std::make_unique<TensorJob>(
      parameters, ranks, settings_, order, settings_.norm_guard,
      Stragglers(settings_.straggler_factor, settings_.round_bound, ranks, parameters->spec().quorum),
      Patience(settings_.deterministic ? 0 : settings_.round_patience, settings_.idle_timeout, ranks),
      WeightLedger(membership_->WeightTimes(), membership_->stands_for(),
                   settings_.policy == LossPolicy::kShift));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!membership_->IsJoined(rank)) continue;
    job->tensor.rounds().OnMemberJoined(rank);
    job->clocks.OnMemberJoined(rank);
  }
  job->BeginEpoch(*membership_);
  if (images_ != nullptr && images_->Find(parameters->spec().name) != nullptr) {
    TensorImage image = images_->Take(parameters->spec().name);
    if (image.counted.size() == ranks) job->counted = std::move(image.counted);
    // A worker that goes on has memories of the epoch that the image was in, and this server has none.
    job->epochs.GoOnAfter(image.shift_epoch);
    for (uint32_t rank = 0; rank < ranks; ++rank) job->clocks.Restore(rank, job->counted[rank].clock);
    job->tensor.Restore(std::move(image));
    job->restored = true;
  }
  return jobs_->Add(std::move(job));  // last: a tensor without memory leaves nothing behind
}

// Whether this worker is to send the initial values.
bool Declarations::AsksForInitial(TensorJob& job, uint32_t rank, bool has_initial) {
  Parameters& parameters = job.tensor.parameters();
  if (job.HasValues() || job.initial_record != 0) return false;
  const bool asked = parameters.initial() == Parameters::Initial::kAwaited;
  if (asked && parameters.initial_sender() != rank) return false;
  if (asked && !has_initial) {
    host_->RequestAbort(
        Status(StatusCode::kAborted, membership_->Describe(rank) +
                                         " came back without the initial values of tensor \"" +
                                         parameters.spec().name + "\" that it had offered"));
    return false;
  }
  // A second declaration of the same incarnation is not asked again; only a newer incarnation is.
  if (asked && job.declared[rank]) return false;
  if (has_initial) parameters.AwaitInitial(rank);
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
    control::Declared& declared = *postponed.answer.mutable_declared();  // as it is now
    SetEpoch(job.epochs, declared);
    SetCounted(job, postponed.rank, membership_->member(postponed.rank).session, declared);
    if (Peer* peer = host_->PeerOfRank(postponed.rank)) host_->Send(*peer, postponed.answer);
  }
}

Declarations::Declared Declarations::ForgetHeld(uint32_t rank) {
  Declared declared;
  held_.Forget(rank);
  AdmitHeld(&declared);
  return declared;
}

void Declarations::Forget(TensorJob& job, uint32_t rank) {
  job.declared[rank] = false;
  postponed_[rank] -= static_cast<uint32_t>(std::erase_if(
      job.postponed_declares, [rank](const PostponedDeclare& waiting) { return waiting.rank == rank; }));
}

}  // namespace longhaul::server
