#include "server/results/result_sender.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "codec/chunk/chunk.h"
#include "codec/chunk/window_metadata.h"
#include "codec/policy/priority.h"

namespace longhaul::server {
namespace {

// The results' chunks that a gradient's chunk is made of: from, to.
std::pair<uint32_t, uint32_t> ResultChunks(const Tensor& tensor, uint32_t chunk) {
  const codec::ChunkGeometry& results = tensor.parameters().result_geometry();
  const uint32_t parts = tensor.geometry().chunk_elements / results.chunk_elements;
  return {chunk * parts, std::min(results.chunks(), (chunk + 1) * parts)};
}

// Of a chunk of the results: the job's, or half where results are of a shorter type than gradients.
uint16_t SymbolBytes(const Parameters& parameters) {
  const size_t chunk =
      codec::DenseChunkBytes(parameters.result_geometry().chunk_elements, parameters.spec().result_dtype);
  return static_cast<uint16_t>((chunk + 15) / 16 * 16);
}

}  // namespace

void ResultSender::SendRound(Peer& peer, Tensor& tensor, Epoch epoch) {
  auto result = std::make_unique<Result>();
  result->peer = &peer;
  result->round = tensor.rounds().number();
  result->epoch = epoch;
  Add(std::move(result), tensor);
}

void ResultSender::SendPull(Peer& peer, Tensor& tensor, uint32_t request) {
  auto result = std::make_unique<Result>();
  result->peer = &peer;
  result->round = tensor.parameters().version();
  result->request = request;
  result->snapshot = tensor.parameters().OfVersion(result->round);
  Add(std::move(result), tensor);
}

LossyDownlink* ResultSender::Downlink(const Tensor& tensor) {
  if (!options_.lossy) return nullptr;
  const codec::ChunkGeometry& geometry = tensor.parameters().result_geometry();
  return &downlinks_.try_emplace(tensor.key(), geometry, *options_.lossy).first->second;
}

void ResultSender::Add(std::unique_ptr<Result> result, Tensor& tensor) {
  Result& added = *results_[tensor.key()].emplace_back(std::move(result));
  const LossyDownlink* downlink = added.snapshot == nullptr ? Downlink(tensor) : nullptr;
  const bool waits = downlink != nullptr && (tensor.rounds().final_order().empty() || !downlink->ranked());
  if (!waits) Enqueue(added, tensor);
}

void ResultSender::Enqueue(Result& result, Tensor& tensor) {
  Peer& peer = *result.peer;
  result.queued = true;
  waiting_[&peer].emplace_back(&tensor, &result);
  OpenWaiting(peer);
}

void ResultSender::OpenWaiting(Peer& peer) {
  auto& line = waiting_[&peer];
  while (!line.empty()) {
    const auto [tensor, result] = line.front();
    if (IsOutdated(*result, *tensor)) {
      DropOrKeepOutdated(*tensor);
      continue;
    }
    if (!TryOpen(*result, *tensor)) return;
    line.pop_front();
    FeedOrRemember(*result, *tensor);
  }
}

// The next chunk that becomes final would overwrite its values.
bool ResultSender::IsOutdated(const Result& result, const Tensor& tensor) {
  const bool borrows = result.snapshot == nullptr && result.kept == nullptr;
  return borrows && result.round + 1 < tensor.parameters().version();
}

// Its worker wants the result of a later round: it does so only when it has this one.
bool ResultSender::HasGoneOn(const Result& result, const Results& all) {
  return std::ranges::any_of(all, [&](const auto& other) {
    return other->peer == result.peer && other->snapshot == nullptr && other->round > result.round;
  });
}

size_t ResultSender::pulls(const Peer& peer) const {
  size_t count = 0;
  for (const auto& [key_of_tensor, results] : results_) count += Pulls(results, peer);
  return count;
}

size_t ResultSender::pulls(const Peer& peer, const Tensor& tensor) const {
  const auto found = results_.find(tensor.key());
  return found == results_.end() ? 0 : Pulls(found->second, peer);
}

size_t ResultSender::Pulls(const Results& results, const Peer& peer) {
  return static_cast<size_t>(std::ranges::count_if(
      results, [&](const auto& result) { return result->peer == &peer && result->snapshot != nullptr; }));
}

uint64_t ResultSender::pinned_bytes() const {
  std::set<const Parameters::Version*> copies;
  for (const auto& [key_of_tensor, results] : results_) {
    for (const auto& result : results) {
      if (result->snapshot != nullptr) copies.insert(result->snapshot.get());
    }
  }
  uint64_t bytes = 0;
  for (const Parameters::Version* copy : copies) bytes += copy->bytes();
  return bytes;
}

bool ResultSender::TryOpen(Result& result, Tensor& tensor) {
  const Parameters& parameters = tensor.parameters();
  codec::WindowMetadata metadata;
  const bool aggregate = tensor.aggregate_only() && result.snapshot == nullptr;
  metadata.dtype = parameters.spec().result_dtype;
  metadata.kind = aggregate ? codec::WindowKind::kAggregate : codec::WindowKind::kWeights;
  metadata.key = tensor.key();
  metadata.round = result.round;
  metadata.count = parameters.geometry().count;
  metadata.chunk_elements = parameters.result_geometry().chunk_elements;
  metadata.request = result.request;
  metadata.shift_epoch = result.epoch.number;
  metadata.shift_epoch_round = result.epoch.change_round;

  transport::WindowOptions window;
  window.key = {.id = result.peer->next_window, .generation = 0};
  LossyDownlink* downlink = result.snapshot == nullptr ? Downlink(tensor) : nullptr;
  if (downlink != nullptr) result.low = downlink->Low(result.peer->rank, result.round);
  window.low_count = result.low.count();
  window.high_count = parameters.result_geometry().chunks() - window.low_count;
  window.symbol_bytes = SymbolBytes(parameters);
  window.fec_k = codec::BlockSizeFor(options_.fec_k, window.high_count);
  window.fec_depth = options_.fec_depth;
  window.priority = codec::SendOrder(parameters.spec().priority, tensor.key());
  window.metadata = codec::EncodeWindowMetadata(metadata);
  const Status opened = result.peer->connection->OpenWindow(window);
  if (opened.code() == StatusCode::kInvalidArgument) {  // and never will
    result.peer->connection->Close(
        Status(StatusCode::kSettingsMismatch, "no window of this worker holds a result of tensor \"" +
                                                  parameters.spec().name + "\": " + opened.message()));
  }
  // Any other refusal waits: for a free window, or for the end of a connection that is closing.
  if (!opened.ok()) return false;
  ++result.peer->next_window;
  result.key = window.key;
  result.open = true;
  return true;
}

// A round's chunks in the order in which they became final, values of their own from the first on.
bool ResultSender::Feed(Result& result, Tensor& tensor, WorkBudget& budget) {
  const Rounds& rounds = tensor.rounds();
  const bool own = result.snapshot != nullptr || result.kept != nullptr;
  const bool current = result.round == rounds.number();
  const auto& order = current ? rounds.final_order() : rounds.previous_order();
  const size_t there = current ? tensor.announced() : order.size();
  const auto end = own ? tensor.parameters().result_geometry().chunks() : static_cast<uint32_t>(there);
  for (; result.fed < end && !budget.spent(); ++result.fed) {
    own ? Submit(result, tensor, result.fed) : SubmitFinal(result, tensor, order[result.fed]);
    budget.Spend(WorkBudget::kPerChunk);
  }
  return result.fed >= end;
}

void ResultSender::FeedOrRemember(Result& result, Tensor& tensor) {
  if (!Feed(result, tensor, *budget_)) behind_[tensor.key()] = &tensor;
}

void ResultSender::Work() {
  // In turn, so that what is pulled again and again holds up no other tensor.
  while (!behind_.empty() && !budget_->spent()) {
    auto next = behind_.upper_bound(worked_on_);
    if (next == behind_.end()) next = behind_.begin();
    worked_on_ = next->first;
    if (WorkOn(*next->second)) behind_.erase(worked_on_);
  }
}

// True when nothing is left.
bool ResultSender::WorkOn(Tensor& tensor) {
  if (LossyDownlink* downlink = Downlink(tensor); downlink != nullptr && !downlink->ranked()) {
    if (!downlink->Rank(*budget_)) return false;
    EnqueueWaiting(tensor);
  }
  return std::ranges::all_of(results_[tensor.key()], [&](const auto& result) {
    return !result->open || Feed(*result, tensor, *budget_);
  });
}

// Results of which the round has a final chunk, which they have waited for.
void ResultSender::EnqueueWaiting(Tensor& tensor) {
  std::vector<Result*> first;
  for (const auto& result : results_[tensor.key()]) {
    const bool begun = result->round < tensor.rounds().number() || !tensor.rounds().final_order().empty();
    if (!result->queued && begun) first.push_back(result.get());
  }
  for (Result* result : first) Enqueue(*result, tensor);
}

// A gradient's chunk is final: its part of the result.
void ResultSender::SubmitFinal(Result& result, Tensor& tensor, uint32_t chunk) {
  const auto [first, end] = ResultChunks(tensor, chunk);
  for (uint32_t part = first; part < end; ++part) Submit(result, tensor, part);
}

void ResultSender::Submit(Result& result, Tensor& tensor, uint32_t chunk) {
  const Parameters& parameters = tensor.parameters();
  Parameters::Version& version = result.snapshot != nullptr ? *result.snapshot
                                 : result.kept != nullptr   ? *result.kept
                                                            : *parameters.OfVersion(result.round + 1);
  const uint32_t coded = version.coded.count();
  const ByteSpan body = parameters.Encoded(version, chunk);
  if (version.coded.count() > coded) budget_->Spend(body.size() / 8);
  const auto header = codec::EncodeDenseHeader(chunk, parameters.result_geometry().Length(chunk),
                                               parameters.spec().result_dtype);
  const bool low = result.low.Test(chunk);
  if (low) result.low_sent.push_back(chunk);
  // Fails only when the connection is closing: then OnPeerGone follows.
  (void)result.peer->connection->SubmitChunk(
      result.key, low ? wire::ReliabilityClass::kLow : wire::ReliabilityClass::kHigh, header, body);
}

void ResultSender::OnChunkFinal(Tensor& tensor, uint32_t chunk) {
  ScoreChange(tensor, chunk);
  const auto found = results_.find(tensor.key());
  if (found == results_.end()) return;
  const size_t final_chunks = tensor.rounds().final_order().size();
  for (const auto& result : found->second) {
    const bool wanted = result->snapshot == nullptr && result->round == tensor.rounds().number();
    // One that is behind has this chunk's turn later.
    if (!wanted || !result->open || result->fed + 1 != final_chunks) continue;
    SubmitFinal(*result, tensor, chunk);
    ++result->fed;
    budget_->Spend(WorkBudget::kPerChunk);
  }
  const LossyDownlink* downlink = Downlink(tensor);
  if (downlink != nullptr && downlink->ranked()) EnqueueWaiting(tensor);
}

// By the results' chunks that a gradient's chunk is made of.
void ResultSender::ScoreChange(Tensor& tensor, uint32_t chunk) {
  LossyDownlink* downlink = Downlink(tensor);
  if (downlink == nullptr) return;
  const Parameters& parameters = tensor.parameters();
  const codec::ChunkGeometry& results = parameters.result_geometry();
  const DType dtype = parameters.spec().result_dtype;
  const auto [first, end] = ResultChunks(tensor, chunk);
  for (uint32_t part = first; part < end; ++part) {
    const std::span<const float> before = results.Elements(parameters.current(), part);
    const std::span<const float> after = results.Elements(parameters.next(), part);
    downlink->ChangedBy(part, codec::AsArrived(dtype, before, &room_[0]),
                        codec::AsArrived(dtype, after, &room_[1]));
  }
}

void ResultSender::EndRound(Tensor& tensor) {
  const auto found = results_.find(tensor.key());
  if (found == results_.end()) return;
  WorkBudget everything = WorkBudget::Everything();
  for (const auto& result : found->second) {
    const bool own = result->snapshot != nullptr || result->kept != nullptr;
    if (!own && result->open && result->round + 1 == tensor.rounds().number())
      Feed(*result, tensor, everything);
  }
}

Status ResultSender::BeginRound(Tensor& tensor) {
  DropOrKeepOutdated(tensor);
  if (LossyDownlink* downlink = Downlink(tensor)) {
    downlink->BeginRound(tensor.rounds().number());
    if (!downlink->Rank(*budget_)) behind_[tensor.key()] = &tensor;
  }
  return tensor.BeginWriting();
}

void ResultSender::DropOrKeepOutdated(Tensor& tensor) {
  const auto found = results_.find(tensor.key());
  if (found == results_.end()) return;
  Results& results = found->second;
  std::vector<const Result*> over;
  for (const auto& result : results) {
    // Also one that was kept before: else a worker that never closes could have us keep the values of every
    // round.
    const bool old = IsOutdated(*result, tensor) || result->kept != nullptr;
    if (old && HasGoneOn(*result, results)) over.push_back(result.get());
  }
  for (const Result* result : over) Drop(tensor, result);
  for (const auto& result : results) {
    if (!IsOutdated(*result, tensor)) continue;
    LH_CHECK(tensor.rounds().final_order().empty());
    LH_CHECK_OP(result->round + 2, ==, tensor.parameters().version());
    result->kept = tensor.parameters().Previous();
    if (result->open) result->fed = tensor.parameters().result_geometry().chunks();  // by EndRound
  }
}

void ResultSender::Drop(Tensor& tensor, const Result* result) {
  if (result->open) result->peer->connection->CancelWindow(result->key);
  std::erase_if(waiting_[result->peer], [&](const auto& waiting) { return waiting.second == result; });
  std::erase_if(results_[tensor.key()], [&](const auto& other) { return other.get() == result; });
  LH_REACHED("a result is outdated before it was sent");
  ++stats_.outdated;
}

void ResultSender::OnWindowClosed(Peer& peer, transport::WindowKey key,
                                  const transport::WindowReceipt& receipt) {
  for (auto& [key_of_tensor, results] : results_) {
    const auto found = std::find_if(results.begin(), results.end(), [&](const auto& result) {
      return result->peer == &peer && result->open && result->key == key;
    });
    if (found == results.end()) continue;
    LearnReceipt(**found, key_of_tensor, receipt);
    results.erase(found);
    break;
  }
  OpenWaiting(peer);
}

void ResultSender::LearnReceipt(const Result& result, uint32_t key, const transport::WindowReceipt& receipt) {
  const auto downlink = downlinks_.find(key);
  if (downlink == downlinks_.end() || result.snapshot != nullptr) return;
  // Refused, or closed before everything had left: the server cannot know which chunks the worker has.
  if (!receipt.high_complete || result.low_sent.size() != result.low.count()) {
    return downlink->second.Forget(result.peer->rank);
  }
  transport::ChunkBitmap missed(result.low.size());
  const std::vector<uint8_t>& taken = receipt.low.bytes();
  for (uint32_t sequence = 0; sequence < result.low_sent.size(); ++sequence) {
    if (sequence % 8 == 0 && taken[sequence / 8] == 0xff) {
      sequence += 7;
    } else if (!receipt.LowTaken(sequence)) {
      missed.Set(result.low_sent[sequence]);
    }
  }
  downlink->second.OnReceipt(result.peer->rank, result.round, std::move(missed));
}

void ResultSender::OnPeerGone(Peer& peer) {
  for (auto& [key_of_tensor, downlink] : downlinks_) downlink.Forget(peer.rank);
  waiting_.erase(&peer);
  for (auto& [key_of_tensor, results] : results_) {
    std::erase_if(results, [&](const std::unique_ptr<Result>& result) {
      if (result->peer != &peer) return false;
      if (result->open) peer.connection->CancelWindow(result->key);
      return true;
    });
  }
}

std::optional<uint32_t> ResultSender::ReplicaHash(const Tensor& tensor, uint32_t rank, uint64_t round) const {
  const auto downlink = downlinks_.find(tensor.key());
  if (downlink == downlinks_.end()) return std::nullopt;
  return downlink->second.ReplicaHash(rank, round);
}

ResultSender::Stats ResultSender::stats() const {
  Stats stats = stats_;
  for (const auto& [key_of_tensor, downlink] : downlinks_) {
    stats.chunks.lost += downlink.stats().lost;
    stats.chunks.repaid += downlink.stats().repaid;
  }
  return stats;
}

}  // namespace longhaul::server
