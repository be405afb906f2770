// From a gradient to the chunks of a window, and back from the window's close to what has to be remembered.
//
//   survey   what the loss policy would send (+ residual, - shift): finite? score per chunk -> high | low, in order
//   submit   what it sends, chunk by chunk -> the largest elements (priority topk) -> wire type, dense | sparse
//   close    the loss policy learns what the server has, as it arrived there: rounded, and in part
//
// Before the first chunk leaves, the values are read once and nothing is written; what is combined, rounded
// and packed is so when its turn to be submitted comes. All of it goes in slices, so that the thread that
// calls is never away for long:
//
//   Begin -> Survey until true -> window(), to be opened -> Submit until submitted() -> OnClosed -> Settle until true
//
// One per tensor, one window at a time. Chunk bodies are borrowed by the connection: float32 that travels
// dense from the gradient or from the loss policy's memory, all else from this object's own storage. All of
// it stays in place until OnClosed or Abandon. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/work_budget.h"
#include "codec/chunk/chunk.h"
#include "codec/chunk/top_k.h"
#include "codec/chunk/window_metadata.h"
#include "codec/policy/loss_policy.h"
#include "codec/policy/priority.h"
#include "codec/policy/sender_memory.h"
#include "longhaul/options.h"
#include "transport/core/connection/connection.h"
#include "worker/client/tensor_shape.h"

namespace longhaul::worker {

class PushPipeline {
 public:
  // The job's, and what is this worker's and this tensor's.
  struct Settings : JobSpec {
    std::vector<TensorOptions::Range> high_ranges = {};
    uint16_t symbol_bytes = 0;
    float weight = 1.0f;
    int window_priority = 0;  // windows of tensors with a lower one leave first
    uint32_t rank = 0;        // with the job's seed: of rounding
    uint32_t world_size = 1;  // with the weight: which values can be summed
  };

  // REQUIRES: priority kTopK goes with shape.format.topk_share > 0 and a policy that remembers.
  PushPipeline(const TensorShape& shape, const Settings& settings);

  // Begins the window of one round. `gradient` is borrowed, and does not change, until Settle is done or
  // Abandon. `epoch`: the shift epoch in force; a new one forgets the shift. weight: of this window; 0: the
  // settings'. Does no work yet. REQUIRES: idle(); gradient.size() == count.
  void Begin(uint64_t round, std::span<const float> gradient, bool wants_result, uint32_t epoch = 0,
             float weight = 0);
  // The same for initial values: everything is of the high class, nothing is remembered.
  void BeginInitial(std::span<const float> values);
  // A slice of the survey. True when it is over: refusal() is Ok and window() describes the window, or it
  // says why there is none and nothing is under way. REQUIRES: Begin or BeginInitial.
  bool Survey(WorkBudget& budget);
  // kInvalidArgument naming the chunk and its elements: a value is not finite, or larger than what can be
  // summed (codec/policy/summable.h). Nothing has changed: not what was owed before, not the scores.
  const Status& refusal() const { return refusal_; }
  // All but its key. REQUIRES: Survey is over, without refusal.
  const transport::WindowOptions& window() const { return window_; }
  // Encodes a slice of the chunks and hands it to the window, which the connection has opened. Fails only
  // when the connection does.
  Status Submit(transport::Connection& connection, transport::WindowKey key, WorkBudget& budget);
  bool submitted() const { return submitted_ == chunks(); }

  struct Outcome {
    uint32_t lost_chunks = 0;
    ByteCount wire_bytes;  // sent for this window, as chunks: retransmissions and repair included
  };
  // The window is closed; what the server did not take is the loss policy's, which Settle tells it.
  Outcome OnClosed(const transport::WindowReceipt& receipt, const transport::WindowTxStats& stats);
  // The connection is lost before it was known that the window counts: it is ready to be opened again, under
  // another connection, and carries the same chunks. REQUIRES: Survey is over, Settle was not called.
  void Rewind();
  // That window counted after all, by what the server has kept of it: these chunks, or none (empty).
  // REQUIRES: as after Rewind.
  void OnCounted(transport::ChunkBitmap chunks);
  // The server has another name for the tensor now.
  void SetKey(uint32_t key, int window_priority);
  // What the server knows of shifts is gone: the next Begin begins an epoch. REQUIRES: idle().
  void ForgetEpoch() { epoch_ = UINT32_MAX; }
  // A slice of that. True when nothing is under way any more.
  bool Settle(WorkBudget& budget);
  // The window is given up, or was never opened: nothing of it was taken. A gradient whose survey is not over
  // is not remembered either; else the rest of it is combined at once. Harmless when idle().
  void Abandon();
  bool idle() const { return stage_ == Stage::kIdle; }

  // From the next Begin on chunks are ranked by these, not by the job's priority: scores of so many equal
  // parts of the tensor; a chunk has the highest of the parts in it. REQUIRES: 1..min(count, 2^20) of them.
  void SetScores(std::vector<float> parts);

  // What waits to be repaid, by element; empty with policies other than residual.
  std::span<const float> residual() const { return memory_->owed(); }
  // Adds to it. REQUIRES: idle(); first + values.size() <= count.
  void Owe(uint64_t first, std::span<const float> values) { memory_->Owe(first, values); }
  // Chunks whose debt overflowed and was dropped (codec/policy/sender_memory.h).
  uint64_t debts_dropped() const { return memory_->debts_dropped(); }
  // This worker's shift, by element; empty with policies other than shift.
  std::span<const float> shift() const { return memory_->shift(); }

 private:
  // In this order; initial values begin with kReady, and only priority kTopK has kSampling.
  enum class Stage : uint8_t {
    kIdle,
    kSampling,   // for the threshold of the largest elements
    kSurveying,  // can every value be summed? Before the loss policy sees one: it would remember NaN for ever
    kRanking,
    kReady,  // or open: being encoded, submitted and sent
    kSettling,
  };
  struct EncodedChunk {
    codec::ChunkHeaderBytes header;
    ByteSpan body;
    // Where the values arrive as they were prepared: these.
    std::span<const float> as_it_is = {};
  };
  // Encoded bodies, in blocks that never move.
  class BodyStore {
   public:
    // A vector with room for so many bytes, to append to.
    std::vector<uint8_t>* Room(size_t bytes);
    void Clear();

   private:
    static constexpr size_t kBlockBytes =
        256 * 1024;  // of a chunk's few kilobytes little is left over at the end
    std::vector<std::vector<uint8_t>> blocks_;
    size_t block_ = 0;  // that is being filled
  };

  bool top_k() const { return settings_.priority == Priority::kTopK; }
  uint32_t chunks() const { return (initial_ ? shape_.geometry : geometry_).chunks(); }
  bool begins_epoch() const { return new_epoch_ != epoch_; }
  void Clear();
  // A step of the stage: an element, a chunk, or some chunks of the ranking.
  void SurveyStep(WorkBudget& budget);
  void Sample();
  void SurveyChunk(uint32_t c);
  double EnergyOf(uint32_t c, const codec::Survey& survey);
  // Elements of a chunk of so many that have room where only a share travels.
  uint32_t Capacity(uint32_t count) const {
    return count == geometry_.chunk_elements
               ? capacity_
               : codec::SparseCapacity(settings_.symbol_bytes, count, shape_.format.gradient);
  }
  double ScoreOf(uint32_t c) const;
  void TakePriorities();
  // The next chunk in the order of sending.
  void EncodeNext();
  void EncodeInitialChunk(uint32_t c);
  void EncodeGradientChunk(uint32_t c);
  std::span<const float> Combined(uint32_t c);
  void Describe(codec::WindowMetadata metadata);
  uint32_t ChunkAt(uint32_t position) const;
  void SettleChunk(uint32_t c, bool taken);
  void LearnLoss();
  void Release();

  TensorShape shape_;
  Settings settings_;
  const codec::ChunkGeometry geometry_;  // of gradients
  const uint32_t capacity_;              // of a whole chunk, which takes a search
  codec::PriorityClassifier classifier_;
  std::unique_ptr<codec::SenderMemory> memory_;
  std::vector<float> new_parts_;  // scores from the next Begin on
  std::vector<float> parts_;      // scores in force; empty: by the job's priority
  std::vector<float> scratch_;    // one chunk
  uint32_t epoch_ = 0;            // of what the memory holds
  double low_sent_ = 0;           // low chunks of the last windows
  double low_lost_ = 0;           // of these

  // Of what is under way.
  Stage stage_ = Stage::kIdle;
  uint32_t next_ = 0;  // chunk of kSurveying; of kSettling: place in the order of sending
  bool initial_ = false;
  bool wants_result_ = false;
  uint64_t round_ = 0;
  uint32_t new_epoch_ = 0;
  float weight_ = 1;                 // of the window
  std::span<const float> values_;    // as given
  std::span<const float> prepared_;  // what the loss policy sends
  std::optional<codec::TopKSampler> sampler_;
  float threshold_ = 0;   // of kTopK
  uint32_t largest_ = 0;  // magnitude that a value may have, as bits
  uint64_t rounding_seed_ = 0;
  Status refusal_;
  transport::WindowOptions window_;
  std::vector<uint32_t> high_order_;  // chunk numbers by sequence number of their class
  std::vector<uint32_t> low_order_;
  std::vector<uint16_t> nonzero_;     // by chunk number, as prepared (kTopK: as selected)
  std::vector<uint8_t> log_energy_;   // by chunk number
  std::vector<EncodedChunk> chunks_;  // in the order of sending, as far as they are encoded
  BodyStore bodies_;                  // in place while a window is under way
  uint32_t submitted_ = 0;            // chunks
  ByteCount submitted_bytes_;
  codec::WindowMetadata metadata_;
  transport::WindowReceipt receipt_;
  std::optional<transport::ChunkBitmap> counted_;  // by chunk, instead of a receipt
};

}  // namespace longhaul::worker
