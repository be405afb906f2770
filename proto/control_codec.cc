#include "proto/control_codec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/check.h"
#include "base/job_settings.h"
#include "base/placement.h"
#include "longhaul/options.h"
#include "proto/utf8.h"

namespace longhaul::wire {
namespace {

using control::ControlMessage;
using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

// One field of the message and the C++ type of its setting.
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, double value) {
  to.SetDouble(message, field, value);
}
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, bool value) {
  to.SetBool(message, field, value);
}
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, uint64_t value) {
  to.SetUInt64(message, field, value);
}
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, int32_t value) {
  to.SetInt32(message, field, value);
}
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, Duration value) {
  to.SetUInt64(message, field, static_cast<uint64_t>(value.count()));
}
template <typename T>  // uint8_t, uint32_t and enumerations
void Put(const Reflection& to, control::JobSpec* message, const FieldDescriptor* field, T value) {
  to.SetUInt32(message, field, static_cast<uint32_t>(value));
}

// False: the number is beyond the type.
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field,
          double* value) {
  *value = from.GetDouble(message, field);
  return true;
}
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field,
          bool* value) {
  *value = from.GetBool(message, field);
  return true;
}
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field,
          uint64_t* value) {
  *value = from.GetUInt64(message, field);
  return true;
}
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field,
          int32_t* value) {
  *value = from.GetInt32(message, field);
  return true;
}
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field,
          Duration* value) {
  const uint64_t nanoseconds = from.GetUInt64(message, field);
  *value = Duration(static_cast<int64_t>(nanoseconds));
  return nanoseconds <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}
template <typename T>
bool Take(const Reflection& from, const control::JobSpec& message, const FieldDescriptor* field, T* value) {
  const uint32_t number = from.GetUInt32(message, field);
  *value = static_cast<T>(number);
  return static_cast<uint32_t>(*value) == number;
}

constexpr uint32_t kMaxWorldSize = 1u << 16;
constexpr uint64_t kMaxIdleTimeoutMs = 24ull * 3600 * 1000;
constexpr uint64_t kMaxHandOverTimeout = 24ull * 3600 * 1000 * 1000 * 1000;  // ns
// A status reply carries JSON; it gets what fits a message beside its other fields.
constexpr size_t kMaxJsonBytes = kMaxControlMessageBytes - 64;

bool Parse(ByteSpan body, ControlMessage* message) {
  // libprotobuf would print its complaint about the peer's bytes; the Status is what our caller logs.
  const google::protobuf::LogSilencer silencer;
  const auto size = static_cast<int>(body.size());
  google::protobuf::io::CodedInputStream in(body.data(), size);
  in.SetRecursionLimit(kMaxControlDepth);
  in.SetTotalBytesLimit(size);
  return message->ParseFromCodedStream(&in) && in.ConsumedEntireMessage();
}

Status Violation(std::string_view field, std::string_view rule) {
  return Status(StatusCode::kProtocolViolation, std::string(field) + " " + std::string(rule));
}

Status NameOrNone(std::string_view field, const std::string& value) {
  if (value.size() > kMaxNameBytes) return Violation(field, "is longer than 256 bytes");
  if (!IsPrintable(value)) return Violation(field, "has control characters");
  return {};
}

Status Name(std::string_view field, const std::string& value) {
  if (value.empty()) return Violation(field, "is empty");
  return NameOrNone(field, value);
}

Status Text(std::string_view field, const std::string& value) {
  if (value.size() > kMaxTextBytes) return Violation(field, "is longer than 1024 bytes");
  return {};
}

// Texts are read on terminals and in logs.
void MakePrintable(std::string* text) { *text = Printable(*text, kMaxTextBytes); }

void MakeTextsPrintable(ControlMessage* message) {
  if (message->has_refused()) MakePrintable(message->mutable_refused()->mutable_message());
  if (message->has_declared()) MakePrintable(message->mutable_declared()->mutable_message());
  if (message->has_pull_refused()) MakePrintable(message->mutable_pull_refused()->mutable_message());
  if (message->has_leave()) MakePrintable(message->mutable_leave()->mutable_message());
  if (message->has_welcome()) MakePrintable(message->mutable_welcome()->mutable_notice());
  if (message->has_barrier_done()) MakePrintable(message->mutable_barrier_done()->mutable_message());
  if (message->has_waiting()) MakePrintable(message->mutable_waiting()->mutable_message());
}

Status Code(std::string_view field, uint32_t value) {
  if (StatusCodeName(static_cast<StatusCode>(value & 0xff)) == "Unknown" || value > 0xff) {
    return Violation(field, "is not a status code");
  }
  return {};
}

Status Share(std::string_view field, double value) {
  // Written so that NaN fails too.
  if (!(value >= 0 && value <= 1)) return Violation(field, "is not in 0..1");
  return {};
}

Status First(std::initializer_list<Status> checks) {
  for (const Status& check : checks) {
    if (!check.ok()) return check;
  }
  return {};
}

Status World(std::string_view prefix, uint32_t rank, uint32_t world_size) {
  const std::string name(prefix);
  if (world_size == 0 || world_size > kMaxWorldSize)
    return Violation(name + ".world_size", "is not in 1..65536");
  if (rank >= world_size) return Violation(name + ".rank", "is not below world_size");
  return {};
}

Status Validate(const control::Join& join) {
  if (!(join.weight() >= kMinWeight && join.weight() <= kMaxWeight)) {
    return Violation("join.weight", "is not in 1e-6..1e9");
  }
  if (join.server() >= kMaxServers) return Violation("join.server", "is not below 64");
  return First({Name("join.job", join.job()), World("join", join.rank(), join.world_size()),
                NameOrNone("join.site", join.site())});
}

Status Validate(const control::ShardMap& map) {
  if (map.epoch() == 0) return Violation("shard_map.epoch", "is zero");
  if (map.servers_size() < 1 || map.servers_size() > static_cast<int>(kMaxServers)) {
    return Violation("shard_map.servers", "are not 1..64");
  }
  for (const std::string& server : map.servers()) {
    if (Status name = NameOrNone("shard_map.servers", server); !name.ok()) return name;
  }
  return {};
}

Status Validate(const control::Membership& membership) {
  const std::string& joined = membership.joined();
  const uint32_t workers = membership.workers();
  if (membership.epoch() == 0) return Violation("membership.epoch", "is zero");
  if (workers == 0 || workers > kMaxWorldSize) return Violation("membership.workers", "is not in 1..65536");
  if (joined.size() != (workers + 7) / 8) {
    return Violation("membership.joined", "has not one bit for each worker");
  }
  const uint32_t unused = 8 * static_cast<uint32_t>(joined.size()) - workers;
  const uint32_t last = static_cast<uint8_t>(joined.back());
  return last >> (8 - unused) == 0 ? Status() : Violation("membership.joined", "has ranks above workers");
}

Status Validate(const control::ServerJoin& join) {
  if (join.servers() > kMaxServers) return Violation("server_join.servers", "is above 64");
  if (join.map_epoch() != 0 && (join.server() == 0 || join.server() >= join.servers())) {
    return Violation("server_join.server", "is not in 1..servers-1");
  }
  return First({Name("server_join.job", join.job()), Name("server_join.address", join.address())});
}

Status Validate(const control::ServerWelcome& welcome) {
  const auto spec = DecodeJobSpec(welcome.job_spec());
  if (!spec.ok()) return Violation("server_welcome.job_spec:", spec.status().message());
  if (welcome.workers() == 0 || welcome.workers() > kMaxWorldSize) {
    return Violation("server_welcome.workers", "is not in 1..65536");
  }
  if (welcome.min_workers() == 0 || welcome.min_workers() > welcome.workers()) {
    return Violation("server_welcome.min_workers", "is not in 1..workers");
  }
  const uint32_t start = welcome.start_workers();
  if (start != 0 && (start < welcome.min_workers() || start > welcome.workers())) {
    return Violation("server_welcome.start_workers", "is not in min_workers..workers");
  }
  if (welcome.map_epoch() == 0) return Violation("server_welcome.map_epoch", "is zero");
  if (welcome.servers() > kMaxServers) return Violation("server_welcome.servers", "is above 64");
  if (welcome.server() == 0 || welcome.server() >= welcome.servers()) {
    return Violation("server_welcome.server", "is not in 1..servers-1");
  }
  return NameOrNone("server_welcome.plugin_aggregation", welcome.plugin_aggregation());
}

Status Validate(const control::Welcome& welcome) {
  const auto spec = DecodeJobSpec(welcome.job_spec());
  if (!spec.ok()) return Violation("welcome.job_spec:", spec.status().message());
  if (welcome.has_shard_map()) {
    if (Status map = Validate(welcome.shard_map()); !map.ok()) return map;
  }
  return Text("welcome.notice", welcome.notice());
}

Status Validate(const control::Refused& refused) {
  if (refused.code() == 0) return Violation("refused.code", "is Ok");
  return First({Code("refused.code", refused.code()), Text("refused.message", refused.message()),
                NameOrNone("refused.first_server", refused.first_server())});
}

Status Validate(const control::Start& start) {
  if (start.symbol_bytes() == 0 || start.symbol_bytes() > 65535 || start.symbol_bytes() % 16 != 0) {
    return Violation("start.symbol_bytes", "is not a positive multiple of 16 below 65536");
  }
  if (start.members() == 0 || start.members() > kMaxWorldSize) {
    return Violation("start.members", "is not in 1..65536");
  }
  return {};
}

Status Validate(const control::Declare& declare) {
  if (declare.dtype() > 0xff) return Violation("declare.dtype", "is above 255");
  if (declare.wire_dtype() > 0xff) return Violation("declare.wire_dtype", "is above 255");
  if (declare.result_dtype() > 0xff) return Violation("declare.result_dtype", "is above 255");
  if (declare.count() == 0 || declare.count() > kMaxElements) {
    return Violation("declare.count", "is not in 1..2^40");
  }
  if (declare.has_staleness() && (declare.staleness() < -1 || declare.staleness() > 1000)) {
    return Violation("declare.staleness", "is not in -1..1000");
  }
  if (declare.has_topk_share() && !(declare.topk_share() > 0 && declare.topk_share() <= 1))
    return Violation("declare.topk_share", "is not above 0 and at most 1");
  if (declare.quorum() > kMaxWorldSize) return Violation("declare.quorum", "is above 65536");
  return First({Name("declare.name", declare.name()), Name("declare.optimizer", declare.optimizer())});
}

Status Validate(const control::Declared& declared) {
  if (declared.counted_chunks().size() > kMaxCountedBytes)
    return Violation("declared.counted_chunks", "is longer than 61440 bytes");
  return First({Code("declared.code", declared.code()), Text("declared.message", declared.message())});
}

Status Validate(const control::PullRequest&) { return {}; }

Status Validate(const control::PullRefused& refused) {
  if (refused.code() == 0) return Violation("pull_refused.code", "is Ok");
  return First({Code("pull_refused.code", refused.code()), Text("pull_refused.message", refused.message())});
}

Status Validate(const control::PushTaken& taken) {
  return taken.generation() > 255 ? Violation("push_taken.generation", "is more than 255") : Status();
}

Status Validate(const control::RoundReport& report) {
  return First({Share("round_report.loss", report.loss()),
                NameOrNone("round_report.fill_reason", report.fill_reason())});
}

Status Validate(const control::Leave& leave) {
  return First({Code("leave.code", leave.code()), Text("leave.message", leave.message())});
}

Status Validate(const control::StatusRequest&) { return {}; }

Status Validate(const control::StatusReply& reply) {
  if (reply.json().size() > kMaxJsonBytes) return Violation("status_reply.json", "is too long");
  return {};
}

Status Validate(const control::KickRequest&) { return {}; }
Status Validate(const control::Kicked& kicked) { return Text("kicked.who", kicked.who()); }

Status Validate(const control::HandOverRequest& request) {
  const bool good = request.timeout() > 0 && request.timeout() <= kMaxHandOverTimeout;
  return good ? Status() : Violation("hand_over_request.timeout", "is not in 1 ns..24 h");
}
Status Validate(const control::HandedOver& handed_over) {
  return Text("handed_over.what", handed_over.what());
}
Status Validate(const control::HandOver& hand_over) {
  return hand_over.phase() <= control::HandOver::kEnds ? Status()
                                                       : Violation("hand_over.phase", "is unknown");
}

Status Validate(const control::Barrier& barrier) { return Name("barrier.name", barrier.name()); }

Status Validate(const control::BarrierDone& done) {
  return First({Code("barrier_done.code", done.code()), Text("barrier_done.message", done.message())});
}

Status Validate(const control::GiveUp&) { return {}; }

Status Validate(const control::ClockRequest&) { return {}; }
Status Validate(const control::ClockReply& reply) {
  if (reply.members() > kMaxWorldSize) return Violation("clock_reply.members", "is above 65536");
  const bool ordered = reply.slowest() <= reply.own() && reply.own() <= reply.fastest();
  return ordered ? Status() : Violation("clock_reply.own", "is not in slowest..fastest");
}

Status Validate(const control::Waiting& waiting) { return Text("waiting.message", waiting.message()); }

Status Validate(const control::BenchJoin& join) { return NameOrNone("bench_join.site", join.site()); }

Status Validate(const control::BenchWelcome& welcome) {
  if (welcome.fec_k() > 32) return Violation("bench_welcome.fec_k", "is above 32");
  if (welcome.fec_depth() > 255) return Violation("bench_welcome.fec_depth", "is above 255");
  if (welcome.idle_timeout_ms() == 0 || welcome.idle_timeout_ms() > kMaxIdleTimeoutMs) {
    return Violation("bench_welcome.idle_timeout_ms", "is not in 1 ms..24 h");
  }
  if (welcome.max_open_windows() == 0) return Violation("bench_welcome.max_open_windows", "is zero");
  if (welcome.max_open_bytes() == 0) return Violation("bench_welcome.max_open_bytes", "is zero");
  return {};
}

Status Validate(const control::BenchReport&) { return {}; }

}  // namespace

Status ValidateControlMessage(const ControlMessage& message) {
  switch (message.message_case()) {
    case ControlMessage::kJoin:
      return Validate(message.join());
    case ControlMessage::kWelcome:
      return Validate(message.welcome());
    case ControlMessage::kRefused:
      return Validate(message.refused());
    case ControlMessage::kStart:
      return Validate(message.start());
    case ControlMessage::kDeclare:
      return Validate(message.declare());
    case ControlMessage::kDeclared:
      return Validate(message.declared());
    case ControlMessage::kPullRequest:
      return Validate(message.pull_request());
    case ControlMessage::kPullRefused:
      return Validate(message.pull_refused());
    case ControlMessage::kPushTaken:
      return Validate(message.push_taken());
    case ControlMessage::kRoundReport:
      return Validate(message.round_report());
    case ControlMessage::kLeave:
      return Validate(message.leave());
    case ControlMessage::kStatusRequest:
      return Validate(message.status_request());
    case ControlMessage::kStatusReply:
      return Validate(message.status_reply());
    case ControlMessage::kKickRequest:
      return Validate(message.kick_request());
    case ControlMessage::kKicked:
      return Validate(message.kicked());
    case ControlMessage::kHandOverRequest:
      return Validate(message.hand_over_request());
    case ControlMessage::kHandedOver:
      return Validate(message.handed_over());
    case ControlMessage::kHandOver:
      return Validate(message.hand_over());
    case ControlMessage::kBarrier:
      return Validate(message.barrier());
    case ControlMessage::kBarrierDone:
      return Validate(message.barrier_done());
    case ControlMessage::kGiveUp:
      return Validate(message.give_up());
    case ControlMessage::kClockRequest:
      return Validate(message.clock_request());
    case ControlMessage::kClockReply:
      return Validate(message.clock_reply());
    case ControlMessage::kMembership:
      return Validate(message.membership());
    case ControlMessage::kWaiting:
      return Validate(message.waiting());
    case ControlMessage::kServerJoin:
      return Validate(message.server_join());
    case ControlMessage::kServerWelcome:
      return Validate(message.server_welcome());
    case ControlMessage::kShardMap:
      return Validate(message.shard_map());
    case ControlMessage::kBenchJoin:
      return Validate(message.bench_join());
    case ControlMessage::kBenchWelcome:
      return Validate(message.bench_welcome());
    case ControlMessage::kBenchReport:
      return Validate(message.bench_report());
    case ControlMessage::MESSAGE_NOT_SET:
      break;
  }
  return Violation("control message", "is empty or of an unknown kind");
}

void EncodeJobSpec(const JobSpec& spec, control::JobSpec* message) {
  for (const JobSetting& setting : JobSettings()) {
    const FieldDescriptor* const field = message->GetDescriptor()->FindFieldByName(std::string(setting.name));
    LH_CHECK(field != nullptr);
    std::visit([&](auto member) { Put(*message->GetReflection(), message, field, spec.*member); },
               setting.field);
  }
}

Result<JobSpec> DecodeJobSpec(const control::JobSpec& message) {
  JobSpec spec;
  for (const JobSetting& setting : JobSettings()) {
    const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(std::string(setting.name));
    LH_CHECK(field != nullptr);
    const bool fits = std::visit(
        [&](auto member) { return Take(*message.GetReflection(), message, field, &(spec.*member)); },
        setting.field);
    if (!fits) {
      return Status(StatusCode::kInvalidArgument,
                    std::string(setting.name) + " is out of range; it must be " + setting.Requirement());
    }
  }
  if (Status valid = spec.Validate(); !valid.ok()) return valid;
  return spec;
}

std::vector<uint8_t> EncodeControlMessage(const ControlMessage& message) {
  const Status valid = ValidateControlMessage(message);
  LH_CHECK_OP(valid.ToString(), ==, Status().ToString());
  const size_t length = message.ByteSizeLong();
  LH_CHECK_OP(length, <=, kMaxControlMessageBytes);
  std::vector<uint8_t> bytes(VarintSize(length) + length);
  ByteWriter out(bytes);
  out.Varint(length);
  LH_CHECK(message.SerializeToArray(bytes.data() + out.size(), static_cast<int>(length)));
  return bytes;
}

Result<std::vector<ControlMessage>> ControlReader::Append(ByteSpan bytes) {
  if (failed_) return Status(StatusCode::kFailedPrecondition, "the control stream is broken");
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  std::vector<ControlMessage> messages;
  size_t used = 0;
  const auto fail = [this](Status why) {
    failed_ = true;
    pending_.clear();
    return why;
  };
  while (used < pending_.size()) {
    ByteReader in(ByteSpan(pending_).subspan(used));
    const uint64_t length = in.Varint();
    if (!in.ok()) break;  // the length itself is incomplete
    if (length > kMaxControlMessageBytes) {
      return fail(Status(StatusCode::kProtocolViolation,
                         "control message of " + std::to_string(length) + " bytes is longer than 65536"));
    }
    if (in.remaining() < length) break;
    const ByteSpan body = in.Bytes(static_cast<size_t>(length));
    ControlMessage message;
    if (!Parse(body, &message)) {
      return fail(Status(StatusCode::kProtocolViolation, "control message cannot be parsed"));
    }
    Status valid = ValidateControlMessage(message);
    if (!valid.ok()) return fail(std::move(valid));
    MakeTextsPrintable(&message);
    messages.push_back(std::move(message));
    used += in.position();
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(used));
  return messages;
}

}  // namespace longhaul::wire
