#include "server/result_sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/chunk.h"
#include "codec/send_order.h"
#include "codec/window_metadata.h"

namespace longhaul::server {
namespace {

// The largest block size that the job allows and that the window can fill (8 is the smallest there is).
uint8_t BlockSizeFor(uint8_t fec_k, uint32_t high_count) {
  for (const int k : codec::kBlockSizes) {
    if (k <= fec_k && k <= static_cast<int>(std::max(8u, high_count))) return static_cast<uint8_t>(k);
  }
  return 0;
}

ByteSpan AsBytes(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

void ResultSender::SendRound(Peer& peer, Tensor& tensor, Epoch epoch) {
  auto result = std::make_unique<Result>();
  result->peer = &peer;
  result->round = tensor.rounds().number();
  result->epoch = epoch;
  Enqueue(std::move(result), tensor);
}

void ResultSender::SendPull(Peer& peer, Tensor& tensor, uint32_t request) {
  auto result = std::make_unique<Result>();
  result->peer = &peer;
  result->round = tensor.parameters().version();
  result->request = request;
  result->snapshot = tensor.parameters().Snapshot();
  Enqueue(std::move(result), tensor);
}

void ResultSender::Enqueue(std::unique_ptr<Result> result, Tensor& tensor) {
  Result& added = *results_[tensor.key()].emplace_back(std::move(result));
  auto& line = waiting_[added.peer];
  line.emplace_back(&tensor, &added);
  OpenWaiting(*added.peer);
  if (!added.open) ++stats_.waited;
}

void ResultSender::OpenWaiting(Peer& peer) {
  auto& line = waiting_[&peer];
  while (!line.empty()) {
    const auto [tensor, result] = line.front();
    if (IsOutdated(*result, *tensor)) {
      SettleOutdated(*tensor);
      continue;
    }
    if (!TryOpen(*result, *tensor)) return;
    line.pop_front();
    SubmitWhatIsThere(*result, *tensor);
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
  for (const auto& [key_of_tensor, results] : results_) {
    count += static_cast<size_t>(std::count_if(results.begin(), results.end(), [&](const auto& result) {
      return result->peer == &peer && result->snapshot != nullptr;
    }));
  }
  return count;
}

bool ResultSender::TryOpen(Result& result, Tensor& tensor) {
  const Parameters& parameters = tensor.parameters();
  codec::WindowMetadata metadata;
  const bool aggregate = tensor.aggregate_only() && result.snapshot == nullptr;
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
  window.high_count = parameters.result_geometry().chunks();
  window.low_count = 0;
  window.symbol_bytes = options_.symbol_bytes;
  window.fec_k = BlockSizeFor(options_.fec_k, window.high_count);
  window.fec_depth = options_.fec_depth;
  window.priority = codec::SendOrder(parameters.spec().priority, tensor.key());
  window.metadata = codec::EncodeWindowMetadata(metadata);
  // Any refusal waits: for a free window, or for the end of a connection that is closing.
  if (!result.peer->connection->OpenWindow(window).ok()) return false;
  ++result.peer->next_window;
  result.key = window.key;
  result.open = true;
  ++stats_.opened;
  return true;
}

void ResultSender::SubmitWhatIsThere(Result& result, Tensor& tensor) {
  const bool in_progress = result.snapshot == nullptr && result.round == tensor.rounds().number();
  if (in_progress) {
    for (const uint32_t chunk : tensor.rounds().final_order()) SubmitFinal(result, tensor, chunk);
    return;
  }
  const uint32_t chunks = tensor.parameters().result_geometry().chunks();
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) Submit(result, tensor, chunk);
}

// A gradient's chunk is final: the results' chunks that it is made of.
void ResultSender::SubmitFinal(Result& result, Tensor& tensor, uint32_t chunk) {
  const codec::ChunkGeometry& results = tensor.parameters().result_geometry();
  const uint32_t parts = tensor.geometry().chunk_elements / results.chunk_elements;
  const uint32_t end = std::min(results.chunks(), (chunk + 1) * parts);
  for (uint32_t part = chunk * parts; part < end; ++part) Submit(result, tensor, part);
}

void ResultSender::Submit(Result& result, Tensor& tensor, uint32_t chunk) {
  const Parameters& parameters = tensor.parameters();
  std::span<const float> values;
  if (result.snapshot != nullptr) {
    values = *result.snapshot;
  } else if (result.kept != nullptr) {
    values = *result.kept;
  } else if (result.round == parameters.version()) {
    values = parameters.next();
  } else {
    LH_CHECK_OP(result.round + 1, ==, parameters.version());  // else the values are overwritten
    values = parameters.current();
  }
  values = parameters.result_geometry().Elements(values, chunk);
  const auto header = codec::EncodeDenseHeader(chunk, static_cast<uint32_t>(values.size()));
  // Fails only when the connection is closing: then OnPeerGone follows.
  (void)result.peer->connection->SubmitChunk(result.key, wire::ReliabilityClass::kHigh, header,
                                             AsBytes(values));
}

void ResultSender::OnChunkFinal(Tensor& tensor, uint32_t chunk) {
  const auto found = results_.find(tensor.key());
  if (found == results_.end()) return;
  for (const auto& result : found->second) {
    const bool wanted =
        result->open && result->snapshot == nullptr && result->round == tensor.rounds().number();
    if (wanted) SubmitFinal(*result, tensor, chunk);
  }
}

void ResultSender::SettleOutdated(Tensor& tensor) {
  const auto found = results_.find(tensor.key());
  if (found == results_.end()) return;
  Results& results = found->second;
  std::vector<const Result*> over;
  for (const auto& result : results) {
    if (IsOutdated(*result, tensor) && HasGoneOn(*result, results)) over.push_back(result.get());
  }
  for (const Result* result : over) Drop(tensor, result);
  std::shared_ptr<const std::vector<float>> values;
  for (const auto& result : results) {
    if (!IsOutdated(*result, tensor)) continue;
    LH_CHECK(tensor.rounds().final_order().empty());
    LH_CHECK_OP(result->round + 2, ==, tensor.parameters().version());
    if (values == nullptr) values = tensor.parameters().GiveAwayPrevious();
    result->kept = values;
    ++stats_.kept;
  }
}

void ResultSender::Drop(Tensor& tensor, const Result* result) {
  if (result->open) result->peer->connection->CancelWindow(result->key);
  std::erase_if(waiting_[result->peer], [&](const auto& waiting) { return waiting.second == result; });
  std::erase_if(results_[tensor.key()], [&](const auto& other) { return other.get() == result; });
  ++stats_.outdated;
}

void ResultSender::OnWindowClosed(Peer& peer, transport::WindowKey key, wire::CloseReason reason) {
  for (auto& [key_of_tensor, results] : results_) {
    const auto found = std::find_if(results.begin(), results.end(), [&](const auto& result) {
      return result->peer == &peer && result->open && result->key == key;
    });
    if (found == results.end()) continue;
    ++(reason == wire::CloseReason::kComplete ? stats_.finished : stats_.refused);
    results.erase(found);
    break;
  }
  OpenWaiting(peer);
}

void ResultSender::OnPeerGone(Peer& peer) {
  waiting_.erase(&peer);
  for (auto& [key_of_tensor, results] : results_) {
    std::erase_if(results, [&](const std::unique_ptr<Result>& result) {
      if (result->peer != &peer) return false;
      if (result->open) peer.connection->CancelWindow(result->key);
      ++stats_.dropped;
      return true;
    });
  }
}

size_t ResultSender::pending() const {
  size_t count = 0;
  for (const auto& [key_of_tensor, results] : results_) count += results.size();
  return count;
}

}  // namespace longhaul::server
