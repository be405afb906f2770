#include "transport/core/connection/key_changes.h"

namespace longhaul::transport {
namespace {

Status KeyViolation(const char* what) {
  return Status(StatusCode::kProtocolViolation, std::string("KEY_UPDATE ") + what);
}

}  // namespace

void KeyChanges::Notice(const PacketProtection& keys, Instant now, Duration pto) {
  if (keys.peer_updates() == phase_) return;
  phase_ = keys.peer_updates();
  changed_at_ = now;
  drop_at_ = now + kPtosOfPrevious * pto;
  if (!frame_ || frame_->phase > phase_) return;
  frame_.reset();  // the peer uses the keys that it was about
  frame_due_ = concluded_ = false;
}

void KeyChanges::OnPoll(PacketProtection* keys, Instant now, Duration pto) {
  Notice(*keys, now, pto);
  if (drop_at_ <= now) {
    keys->DropPrevious();
    drop_at_ = Instant::Infinite();
  }
  if (frame_ || !keys->IsSecure() || !policy_.Due(keys->key_phase(), now)) return;
  Say({phase_ + 1, false, keys->Offer()});
  ++begun_;
}

Status KeyChanges::OnFrame(PacketProtection* keys, bool is_client, const wire::KeyUpdateFrame& frame,
                           Instant now, Duration pto) {
  if (!keys->IsSecure()) return KeyViolation("without keys");
  Notice(*keys, now, pto);
  if (frame.phase <= phase_) return Status::Ok();  // a repetition
  if (frame.phase > phase_ + 1) return KeyViolation("of a phase that is not the next");
  const bool offered = frame_ && !frame_->answer && !concluded_;
  if (frame.answer) {
    if (!offered) return Status::Ok();
    if (!keys->Conclude(frame.share)) return KeyViolation("with a share that no peer makes");
    keys->UpdateKeys();
    frame_due_ = false;
    concluded_ = true;
    return Status::Ok();
  }
  if (frame_ && (is_client || !offered)) return Status::Ok();  // ours counts, or it was answered
  return OnOffer(keys, frame, now);
}

Status KeyChanges::OnOffer(PacketProtection* keys, const wire::KeyUpdateFrame& offer, Instant now) {
  if (changed_at_ && now - *changed_at_ < limits_.spacing / 2) return KeyViolation("again, too soon");
  const std::optional<KeyShare> share = keys->Answer(offer.share);
  if (!share) return KeyViolation("with a share that no peer makes");
  Say({offer.phase, true, *share});
  return Status::Ok();
}

}  // namespace longhaul::transport
