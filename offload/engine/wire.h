// The packet between engines. Word 0 is what a network card's parser needs; the extension makes it safe.
//
//   word 0:  application 4 bits | data 10 bits | intra-node state 2 bits | inter-node state 16 bits
//   then:    magic 16, version 8, kind 8 | jid 16, source 8, root 8 | mid 32 | sid 32 | generation 32
//            op 4, type 4, opcode 8, flags 8, status 8 | seg bytes 16, payload 16 | message length 64
//            nodes 16, missing 16, late 16, 0 16 | contributors 64 | ranks 64 | participants 32 | CRC-32C 32
//
// All big-endian. Application and data are the low bits of jid and sid, the inter-node state is the low 16
// contributors: one bit per node, so the step of a ring is its popcount.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "longhaul/offload.h"

namespace longhaul::offload {

inline constexpr uint16_t kMagic = 0x4c48;
inline constexpr uint8_t kWireVersion = 3;
inline constexpr size_t kHeaderBytes = 72;

inline constexpr uint32_t kAppBits = 4;
inline constexpr uint32_t kDataBits = 10;
inline constexpr uint32_t kIntraBits = 2;
inline constexpr uint32_t kInterBits = 16;

enum class PacketKind : uint8_t {
  kPartial = 0,     // a sum of `contributors`
  kResult = 1,      // the result of a seg
  kAckPartial = 2,  // `contributors` are in
  kAckResult = 3,
  kRedirect = 4,  // `contributors` are not in, and never will be through the sender: send them to node `root`
  kAbort = 5,     // the message has ended as `status`
  kConfig = 6,    // the payload is a JobConfig; mid and generation are its number, high half first
  kAckConfig = 7,
  kOrdinary = 8,  // an ordinary datagram for rank `root`, of the one in `ranks`
  kGoneOn = 9,    // the sender has sent its sum; `missing` go to the owner by themselves, `contributors` past
                  // the receiver
  kClaim = 10,    // to the owner, which is late again and again: the sender wants to own the seg
  kOwner = 11,    // the answer: node `root` owns it
  kProbe = 12,    // is the receiver alive?
  kAlive = 13,    // the answer
};
inline constexpr uint8_t kPacketKinds = 14;

struct Header {
  // Bit 0: reduced. Bit 1: other machines are involved.
  static constexpr uint8_t kReduced = 1;
  static constexpr uint8_t kInvolvesOthers = 2;
  // Flags beyond those of a WorkRequest.
  static constexpr uint8_t kTree = 4;
  static constexpr uint8_t kIncomplete = 8;  // a rank or node that belongs in the sum is not
  // `nodes` are the job's without those that have died; of an abort: `missing` are out of the job.
  static constexpr uint8_t kReformed = 16;

  uint8_t intra = 0;
  PacketKind kind = PacketKind::kPartial;
  uint16_t jid = 0;
  uint8_t source = 0;
  uint8_t root = 0;
  uint32_t mid = 0;
  uint32_t sid = 0;
  uint32_t generation = 0;
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kFloat32;
  Opcode opcode = Opcode::kAllReduce;
  uint8_t flags = 0;
  WorkStatus status = WorkStatus::kSuccess;
  uint16_t seg_bytes = 0;
  uint64_t length = 0;
  uint64_t nodes = 0;
  uint32_t missing = 0;  // nodes that no one on the seg's way waits for; of an abort: the dead
  uint32_t late = 0;     // nodes that someone has waited for in vain
  uint64_t contributors = 0;
  uint64_t ranks = 0;         // of the source, whose data is in the sum
  uint32_t participants = 0;  // ranks of all nodes in the sum

  friend bool operator==(const Header&, const Header&) = default;
};

// Writes header and payload; the bytes written, 0 when they do not fit. payload: at most 65535 bytes.
size_t Encapsulate(const Header& header, ByteSpan payload, MutableByteSpan out);

enum class ParseError : uint8_t {
  kNone,
  kForeign,    // not ours: too short, another magic or version
  kDamaged,    // the checksum
  kMalformed,  // ours, and impossible
};

struct Packet {
  Header header;
  ByteSpan payload;  // of the datagram
};

// Every value of what parses is in range; whether it fits a message is the engine's question.
std::optional<Packet> Parse(ByteSpan datagram, ParseError* error = nullptr);

// The node that the header names, unchecked; nothing when that is no packet of ours.
std::optional<uint8_t> SourceOf(ByteSpan datagram);

// A job's configuration as payload of kConfig.
inline constexpr size_t kConfigBytes = 38;
void EncodeConfig(const JobConfig& config, MutableByteSpan out);
std::optional<JobConfig> DecodeConfig(ByteSpan bytes);

}  // namespace longhaul::offload
