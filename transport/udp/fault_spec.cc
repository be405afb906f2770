#include "transport/udp/fault_spec.h"

#include <charconv>
#include <cmath>
#include <set>

namespace longhaul::udp {
namespace {

Status Bad(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

template <typename T>
Status Assign(T& target, Result<T> parsed) {
  if (!parsed.ok()) return parsed.status();
  target = *parsed;
  return Status::Ok();
}

template <typename T>
bool ParseNumber(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Result<double> ParseChance(std::string_view text) {
  if (text.ends_with('%')) return wan::ParsePercent(text);
  double value = 0;
  if (!ParseNumber(text, value) || !std::isfinite(value)) {
    return Bad(Quoted(text) + " is not a number; write a chance such as 0.02 or 2%");
  }
  if (value < 0 || value > 1) return Bad(Quoted(text) + " is outside 0..1; for percent write 2%");
  return value;
}

Status ParseQueue(std::string_view text, wan::LinkOptions& link) {
  if (Result<Duration> time = wan::ParseTime(text); time.ok()) {
    link.queue_time = *time;
    return Status::Ok();
  }
  Result<ByteCount> bytes = wan::ParseBytes(text);
  if (!bytes.ok()) return Bad(Quoted(text) + " is neither a time (50ms) nor a size (256kb)");
  if (bytes->value() == 0) return Bad("a queue of no bytes holds no datagram");
  link.queue_bytes = *bytes;
  return Status::Ok();
}

Status ParseBurst(std::string_view text, wan::LinkOptions& link) {
  if (ParseNumber(text, link.loss_burst) && link.loss_burst >= 1) return Status::Ok();
  return Bad(Quoted(text) + " is not a mean burst length; write datagrams, at least 1");
}

Status ParseSide(std::string_view text, FaultSide& side) {
  if (text == "both") return side = FaultSide::kBoth, Status::Ok();
  if (text == "in") return side = FaultSide::kIncoming, Status::Ok();
  if (text == "out") return side = FaultSide::kOutgoing, Status::Ok();
  return Bad(Quoted(text) + " is not a side; write in, out or both");
}

// One name per meaning, so that a spec cannot set a value twice under two names.
std::string_view Canonical(std::string_view key) {
  if (key == "loss") return "drop";
  if (key == "duplicate") return "dup";
  return key;
}

Status ParseOne(std::string_view key, std::string_view value, FaultOptions& out) {
  wan::LinkOptions& link = out.link;
  if (key == "drop") return Assign(link.loss, ParseChance(value));
  if (key == "burst") return ParseBurst(value, link);
  if (key == "dup") return Assign(link.duplicate, ParseChance(value));
  if (key == "reorder") return Assign(link.reorder, ParseChance(value));
  if (key == "corrupt") return Assign(link.corrupt, ParseChance(value));
  if (key == "delay") return Assign(link.delay, wan::ParseTime(value));
  if (key == "jitter") return Assign(link.jitter, wan::ParseTime(value));
  if (key == "rate") return Assign(link.rate, wan::ParseRate(value));
  if (key == "queue") return ParseQueue(value, link);
  if (key == "side") return ParseSide(value, out.side);
  if (key == "seed")
    return ParseNumber(value, out.seed) ? Status::Ok() : Bad(Quoted(value) + " is not a number");
  return Bad("unknown; known are drop burst dup reorder corrupt delay jitter rate queue side seed");
}

}  // namespace

Result<FaultOptions> ParseFaults(std::string_view spec) {
  FaultOptions out;
  std::set<std::string_view> seen;
  for (size_t at = 0; at <= spec.size();) {
    const size_t end = std::min(spec.find(',', at), spec.size());
    const std::string_view word = spec.substr(at, end - at);
    at = end + 1;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size()) {
      return Bad("fault " + Quoted(word) + ": write NAME=VALUE, such as drop=0.02,delay=25ms");
    }
    const std::string_view key = Canonical(word.substr(0, equals));
    if (!seen.insert(key).second) return Bad("fault " + Quoted(word) + ": given twice");
    if (Status s = ParseOne(key, word.substr(equals + 1), out); !s.ok()) {
      return Bad("fault " + Quoted(word) + ": " + s.message());
    }
  }
  if (seen.contains("queue") && out.link.rate.IsZero())
    return Bad("fault 'queue': has no effect without a rate");
  if (seen.contains("burst") && !seen.contains("drop"))
    return Bad("fault 'burst': has no effect without drop");
  if (Status s = out.link.Validate(); !s.ok()) return Bad("faults " + Quoted(spec) + ": " + s.message());
  return out;
}

}  // namespace longhaul::udp
