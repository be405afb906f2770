#include "transport/core/connection/windows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/reached.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {
namespace {

// What a WINDOW_NACK takes besides its bitmap: type, id 5, generation, first 4, length 2; rounded up.
constexpr size_t kNackFields = 16;

}  // namespace

Windows::Windows(codec::ErasureCoder* coder, IncomingWindows::Limits limits, ByteCount receive_window,
                 EventQueue* events, ConnectionStats* stats)
    : outgoing_(coder), incoming_(coder, limits), events_(events), stats_(stats) {
  grant_.receive_window_bytes = static_cast<uint64_t>(receive_window.value());
}

Status Windows::Open(const WindowOptions& options, const wire::TransportParametersFrame& peer) {
  const uint64_t bytes = std::min<uint64_t>(peer.max_window_bytes, uint64_t{1} << 62);
  Status status = outgoing_.Open(options, peer.max_open_windows, ByteCount(static_cast<int64_t>(bytes)));
  if (status.ok()) ++stats_->windows_opened;
  return status;
}

Status Windows::Submit(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header, ByteSpan body) {
  WindowTx* window = outgoing_.Find(key);
  if (window == nullptr) {
    return Status(StatusCode::kNotFound, "window " + std::to_string(key.id) + " is not open");
  }
  return window->Submit(reliability, header, body);
}

bool Windows::Close(WindowKey key, wire::CloseReason reason) {
  const WindowRx* window = incoming_.Find(key);
  if (window == nullptr) return false;
  stats_->chunks_repaired += window->stats().high_repaired;
  ++stats_->windows_closed;
  parts_.Forget(key);
  return incoming_.Close(key, reason);
}

void Windows::Cancel(WindowKey key) {
  cutter_.Forget(key);
  outgoing_.Erase(key);
  events_->Forget(key);
}

void Windows::RefuseChunk(WindowKey key, wire::ReliabilityClass reliability, uint32_t sequence) {
  WindowRx* window = incoming_.Find(key);
  if (window != nullptr && window->Refuse(reliability, sequence)) ++stats_->chunks_refused;
}

void Windows::Grant(Bandwidth rate, ByteCount receive_window) {
  wire::GrantFrame grant;
  // On the wire zero is no bound.
  grant.rate_bytes_per_second =
      rate.IsZero() ? 0 : std::max<uint64_t>(1, static_cast<uint64_t>(rate.bytes_per_second()));
  grant.receive_window_bytes = static_cast<uint64_t>(receive_window.value());
  if (grant == grant_) return;
  grant_ = grant;
  grant_due_ = true;
}

void Windows::ProbeWith(std::span<const SentChunk> chunks, int count) {
  if (HasChunk()) return;
  int found = 0;
  for (const SentChunk& chunk : chunks) {
    WindowTx* window = outgoing_.Find({chunk.window_id, chunk.generation});
    if (window != nullptr && window->OnProbe(chunk) && ++found == count) return;
  }
}

bool Windows::HasFrames() const {
  return outgoing_.HasPendingFrame() || incoming_.HasPendingClose() || incoming_.HasPendingNack() ||
         grant_due_;
}

void Windows::AddFrames(Instant now, PacketBuilder* builder) {
  if (grant_due_ && builder->Add(grant_)) {
    builder->Remember(SentGrant{});
    grant_due_ = false;
  }
  if (AddCloses(now, builder) && AddNacks(builder)) AddOpensAndStatuses(builder);
}

bool Windows::AddCloses(Instant now, PacketBuilder* builder) {
  while (const std::optional<wire::WindowCloseFrame> close = incoming_.PeekClose()) {
    if (!builder->Add(*close)) return false;
    builder->Remember(SentWindowClose{close->window_id, close->generation, close->first});
    incoming_.PopClose(now);
  }
  return true;
}

bool Windows::AddNacks(PacketBuilder* builder) {
  std::vector<uint8_t> missing;
  for (;;) {
    const size_t room = builder->room() - std::min(builder->room(), kNackFields);
    const size_t limit = std::clamp(room, WindowRx::kCloseSegmentBytes, wire::kMaxNackBitmapBytes);
    const std::optional<wire::WindowNackFrame> nack = incoming_.PeekNack(limit, &missing);
    if (!nack) return true;
    if (!builder->Add(*nack)) return false;
    LH_REACHED("missing chunks are asked for");
    ++stats_->nacks_sent;
    incoming_.PopNack();
  }
}

void Windows::AddOpensAndStatuses(PacketBuilder* builder) {
  while (const std::optional<OutgoingWindows::Pending> pending = outgoing_.PeekFrame()) {
    const WindowTx* window = outgoing_.Find(pending->key);
    const auto [id, generation] = pending->key;
    if (pending->type == wire::FrameType::kWindowOpen) {
      if (!builder->Add(window->OpenFrame())) return;
      builder->Remember(SentWindowOpen{id, generation});
    } else {
      if (!builder->Add(window->StatusFrame())) return;
      builder->Remember(SentWindowStatus{id, generation});
    }
    outgoing_.PopFrame();
  }
}

bool Windows::AddChunk(const PathView& path, uint32_t timestamp_us, PacketBuilder* builder) {
  const size_t room = builder->room() - wire::kDataHeaderBytes;
  if (!cutter_.HasRest()) {
    const std::optional<WindowTx::Item> item = outgoing_.NextChunk(path);
    if (!item) return false;
    CountSent(*item);
    if (item->size() <= room) {
      builder->SetChunk(*item, timestamp_us);
      return true;
    }
    ++stats_->chunks_cut;
    cutter_.Take(*item);
  }
  builder->SetChunk(cutter_.Next(room), timestamp_us);
  return true;
}

void Windows::CountSent(const WindowTx::Item& item) {
  if (item.header.repair) {
    ++stats_->repairs_sent;
  } else if (item.header.retransmission) {
    ++stats_->retransmissions;
  } else {
    stats_->chunk_bytes_sent += item.size();
  }
}

void Windows::OnPacketAcked(const SentPacket& packet) {
  if (packet.chunk && (packet.cut == nullptr || packet.cut->OnPartAcked())) {
    WindowTx* window = outgoing_.Find({packet.chunk->window_id, packet.chunk->generation});
    if (window != nullptr) window->OnAcked(*packet.chunk);
  }
  for (const SentFrame& frame : packet.frames) {
    if (const auto* close = std::get_if<SentWindowClose>(&frame)) {
      incoming_.OnCloseAcked({close->window_id, close->generation}, close->first);
    }
  }
}

void Windows::OnPacketLost(const SentPacket& packet, const PathView& path) {
  if (!packet.chunk || (packet.cut != nullptr && !packet.cut->OnPartLost())) return;
  WindowTx* window = outgoing_.Find({packet.chunk->window_id, packet.chunk->generation});
  if (window != nullptr) window->OnLost(*packet.chunk, path);
}

void Windows::SendAgain(const SentFrame& frame) {
  if (const auto* open = std::get_if<SentWindowOpen>(&frame)) {
    outgoing_.Requeue(wire::FrameType::kWindowOpen, {open->window_id, open->generation});
  } else if (const auto* status = std::get_if<SentWindowStatus>(&frame)) {
    outgoing_.Requeue(wire::FrameType::kWindowStatus, {status->window_id, status->generation});
  } else if (const auto* close = std::get_if<SentWindowClose>(&frame)) {
    incoming_.OnCloseLost({close->window_id, close->generation}, close->first);
  } else if (std::holds_alternative<SentGrant>(frame)) {
    grant_due_ = true;  // the newest one, whichever was lost
  }
}

void Windows::OnNack(const wire::WindowNackFrame& nack, Instant now, Duration smoothed_rtt) {
  const std::optional<uint32_t> queued = outgoing_.OnNack(nack, now, smoothed_rtt);
  if (!queued) {
    LH_REACHED("a second WINDOW_NACK within a round trip");
    ++stats_->nacks_ignored;
  } else if (*queued > 0) {
    LH_REACHED("WINDOW_NACK queues chunks again");
    ++stats_->nacks_received;
  }
}

Status Windows::OnOpen(const wire::WindowOpenFrame& open) {
  const WindowKey key{open.window_id, open.generation};
  if (!admitted_) {
    ++stats_->not_admitted_dropped;
    events_->Announce();
    events_->PushOpened(open);
    return Status::Ok();
  }
  const Result<IncomingWindows::OpenVerdict> verdict = incoming_.OnOpen(open);
  if (!verdict.ok()) return verdict.status();
  if (*verdict != IncomingWindows::OpenVerdict::kOpened) return Status::Ok();
  events_->Announce();
  events_->PushOpened(open);
  const bool finished = incoming_.BeginReplay(key);
  if (finished) incoming_.Find(key)->OnFinished();
  const bool replays = incoming_.IsReplaying(key);
  if (replays) events_->Push(EventQueue::Kind::kChunks, key);
  if (replays || finished) events_->PushState(key);
  return Status::Ok();
}

void Windows::OnStatus(const wire::WindowStatusFrame& status) {
  const WindowKey key{status.window_id, status.generation};
  if (!admitted_) return;
  if (WindowRx* window = incoming_.Find(key); window != nullptr) {
    window->OnStatus(status);
    events_->PushState(key);
  } else if (status.finished && !incoming_.IsClosed(key) && !incoming_.KeepEarlyFinished(key)) {
    ++stats_->unknown_window_dropped;
  }
}

void Windows::OnClose(const wire::WindowCloseFrame& close) {
  const WindowKey key{close.window_id, close.generation};
  WindowTx* window = outgoing_.Find(key);
  if (window == nullptr || !window->OnClose(close)) return;
  cutter_.Forget(key);
  const WindowReceipt& receipt = window->receipt();
  stats_->low_chunks_lost += receipt.low.size() - receipt.low.count();
  events_->PushClosed(key, outgoing_.Take(key));
}

Windows::ChunkFate Windows::OnChunk(const wire::DataHeader& header, ByteSpan chunk) {
  const WindowKey key{header.window_id, header.generation};
  if (chunk.empty()) return ChunkFate::kInvalid;
  if (!admitted_) {
    ++stats_->not_admitted_dropped;
    return ChunkFate::kTaken;
  }
  if (incoming_.IsClosed(key)) {
    LH_REACHED("a chunk of a closed window");
    ++stats_->late_dropped;
    return ChunkFate::kTaken;
  }
  return header.part ? OnPart(header, chunk) : OnWholeChunk(header, chunk);
}

bool Windows::IsOver(const wire::DataHeader& header) const {
  const WindowKey key{header.window_id, header.generation};
  const WindowRx* window = incoming_.Find(key);
  return window != nullptr ? window->IsDuplicate(header) : incoming_.IsClosed(key);
}

Windows::ChunkFate Windows::OnPart(const wire::DataHeader& header, ByteSpan bytes) {
  ByteReader reader(bytes);
  const std::optional<wire::PartHeader> part = wire::DecodePartHeader(reader);
  if (!part) return ChunkFate::kInvalid;
  const WindowRx* window = incoming_.Find({header.window_id, header.generation});
  if (window != nullptr && !window->IsValid(header, part->total)) return ChunkFate::kInvalid;
  if (IsOver(header)) return ChunkFate::kTaken;
  const auto is_over = [this](const wire::DataHeader& other) { return IsOver(other); };
  const PartAssembly::Verdict verdict = parts_.Add(header, *part, reader.Rest(), is_over);
  stats_->half_chunks_dropped = parts_.dropped();
  switch (verdict) {
    case PartAssembly::Verdict::kKept:
      return ChunkFate::kTaken;
    case PartAssembly::Verdict::kNoRoom:
      ++stats_->parts_refused;
      return ChunkFate::kNoRoom;
    case PartAssembly::Verdict::kInvalid:
      return ChunkFate::kInvalid;
    case PartAssembly::Verdict::kWhole:
      break;
  }
  const PartAssembly::Whole whole = parts_.whole(header);
  const ChunkFate fate = OnWholeChunk(whole.header, whole.bytes);
  fate == ChunkFate::kNoRoom ? parts_.TakeBack(header) : parts_.Release(header);
  if (fate == ChunkFate::kTaken) ++stats_->chunks_joined;
  return fate;
}

Windows::ChunkFate Windows::OnWholeChunk(const wire::DataHeader& header, ByteSpan chunk) {
  const WindowKey key{header.window_id, header.generation};
  WindowRx* window = incoming_.Find(key);
  if (window == nullptr) {
    if (incoming_.KeepEarly(key, header, chunk)) return ChunkFate::kTaken;
    LH_REACHED("no room for a chunk before its window");
    ++stats_->unknown_window_dropped;
    return ChunkFate::kNoRoom;
  }
  if (!window->IsValid(header, chunk.size())) return ChunkFate::kInvalid;
  if (incoming_.IsReplaying(key)) {
    LH_REACHED("a chunk arrives while earlier ones are replayed");
    incoming_.AppendToReplay(key, header, chunk);
    return ChunkFate::kTaken;
  }
  window->EndLoans();
  if (header.repair) ++stats_->repairs_received;
  const bool any = window->OnData(header, chunk) == WindowRx::Verdict::kNew;
  if (any) events_->Push(EventQueue::Kind::kChunks, key);
  events_->PushState(key);
  return ChunkFate::kTaken;
}

const WindowRx* Windows::Polled(WindowKey key) const { return admitted_ ? incoming_.Find(key) : nullptr; }

Result<std::optional<event::Chunk>> Windows::PollChunk(WindowKey key) {
  WindowRx* window = admitted_ ? incoming_.Find(key) : nullptr;
  while (window != nullptr) {
    if (const std::optional<WindowRx::Chunk> chunk = window->PollChunk()) {
      stats_->chunk_bytes_received += chunk->bytes.size();
      return std::optional(
          event::Chunk{key, chunk->reliability, chunk->sequence, chunk->bytes, chunk->repaired});
    }
    const IncomingWindows::EarlyChunk* early = incoming_.NextReplayed(key);
    if (early == nullptr) break;
    if (early->header.repair) ++stats_->repairs_received;
    if (window->OnData(early->header, early->chunk) == WindowRx::Verdict::kInvalid) {
      return Status(StatusCode::kProtocolViolation, "chunk outside of window " + std::to_string(key.id));
    }
  }
  return std::optional<event::Chunk>();
}

}  // namespace longhaul::transport
