// Control messages on the control stream: a QUIC varint with the length, then the serialised ControlMessage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "longhaul/job.h"
#include "longhaul/status.h"
#include "proto/control.pb.h"

namespace longhaul::wire {

// Longer messages are the peer's protocol error.
inline constexpr size_t kMaxControlMessageBytes = 64 * 1024;
// Messages inside messages, unknown groups included; ours are two deep. Deeper ones are the peer's protocol
// error.
inline constexpr int kMaxControlDepth = 4;
// Bounds on text fields, so that a peer cannot make logs or tables grow.
inline constexpr size_t kMaxNameBytes = 256;
// A tensor larger than this cannot be addressed by chunk positions.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;
inline constexpr size_t kMaxTextBytes = 1024;
// Of Declared.counted_chunks: a bit for each of 491,520 chunks, which fits a message.
inline constexpr size_t kMaxCountedBytes = 60 * 1024;

// A job's settings as they travel and back, by the table in base/job_settings.h: the message has a field of
// the setting's name for each.
void EncodeJobSpec(const JobSpec& spec, control::JobSpec* message);
// Errors: kInvalidArgument (JobSpec::Validate), naming the setting.
Result<JobSpec> DecodeJobSpec(const control::JobSpec& message);

// The bytes to put on the stream. REQUIRES: a message is set and Validate(message) is Ok.
std::vector<uint8_t> EncodeControlMessage(const control::ControlMessage& message);

// Ranges and lengths of every field (rank < world_size, shares in 0..1 and finite, names not empty, within
// kMaxNameBytes and without control characters (IsPrintable), weight finite and > 0, count >= 1, ...).
// kProtocolViolation names the field.
Status ValidateControlMessage(const control::ControlMessage& message);

// Cuts the peer's stream into messages. Holds at most one incomplete message.
class ControlReader {
 public:
  // Appends stream bytes and returns every message that is now complete, each validated and its texts for
  // people made Printable. After an error the
  // stream is unusable: the connection must be closed.
  Result<std::vector<control::ControlMessage>> Append(ByteSpan bytes);

 private:
  std::vector<uint8_t> pending_;
  bool failed_ = false;
};

}  // namespace longhaul::wire
