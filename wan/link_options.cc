#include "wan/link_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "wan/loss_process.h"

namespace longhaul::wan {
namespace {

using std::chrono::hours;

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Quoted(std::string_view text) {
  std::string out(1, '\'');
  out.append(text);
  out.push_back('\'');
  return out;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct Unit {
  std::string_view name;
  double factor;
};

// A number followed by one of `units`; `wants` ends the sentence of the error.
Result<double> ParseWithUnit(std::string_view text, std::initializer_list<Unit> units,
                             std::string_view wants) {
  const std::string lower = Lower(text);
  double number = 0;
  const auto [rest, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    return Invalid(Quoted(text) + " is not a number with a unit; write " + std::string(wants));
  }
  if (number < 0) return Invalid(Quoted(text) + " is negative");
  const std::string_view suffix(rest, static_cast<size_t>(lower.data() + lower.size() - rest));
  for (const Unit& unit : units) {
    if (suffix == unit.name) return number * unit.factor;
  }
  const std::string problem = suffix.empty() ? " has no unit" : " has the unknown unit " + Quoted(suffix);
  return Invalid(Quoted(text) + problem + "; write " + std::string(wants));
}

std::string Shortest(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : std::to_string(value);
}

std::string PercentText(double ratio) { return Shortest(ratio * 100) + "%"; }

std::string TimeText(Duration t) {
  const int64_t ns = t.count();
  if (ns % 1'000'000'000 == 0) return std::to_string(ns / 1'000'000'000) + "s";
  if (ns % 1'000'000 == 0) return std::to_string(ns / 1'000'000) + "ms";
  if (ns % 1'000 == 0) return std::to_string(ns / 1'000) + "us";
  return std::to_string(ns) + "ns";
}

std::string RateText(Bandwidth rate) {
  const int64_t bps = rate.bits_per_second();
  if (bps % 1'000'000'000 == 0) return std::to_string(bps / 1'000'000'000) + "gbit";
  if (bps % 1'000'000 == 0) return std::to_string(bps / 1'000'000) + "mbit";
  if (bps % 1'000 == 0) return std::to_string(bps / 1'000) + "kbit";
  return std::to_string(bps) + "bit";
}

// The words of one description, consumed front to back.
class WordReader {
 public:
  explicit WordReader(std::string_view text) {
    constexpr std::string_view kSeparators = " \t\n,=";
    size_t at = text.find_first_not_of(kSeparators);
    while (at != std::string_view::npos) {
      const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
      words_.push_back(text.substr(at, end - at));
      at = text.find_first_not_of(kSeparators, end);
    }
  }
  bool AtEnd() const { return next_ == words_.size(); }
  std::string_view Take() { return AtEnd() ? std::string_view() : words_[next_++]; }
  bool TakeIf(std::string_view word) {
    if (AtEnd() || Lower(words_[next_]) != word) return false;
    ++next_;
    return true;
  }
  bool NextIsNumber() const {
    return !AtEnd() && std::isdigit(static_cast<unsigned char>(words_[next_].front())) != 0;
  }

 private:
  std::vector<std::string_view> words_;
  size_t next_ = 0;
};

template <typename T>
Status Assign(T& target, Result<T> parsed) {
  if (parsed.ok()) target = *parsed;
  return parsed.ok() ? Status::Ok() : parsed.status();
}

Status ParseBurst(WordReader& words, LinkOptions& options) {
  const std::string_view text = words.Take();
  double burst = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), burst);
  if (error != std::errc() || end != text.data() + text.size() || !(burst >= 1)) {
    return Invalid(Quoted(text) +
                   " is not a mean burst length; write packets, at least 1, such as 'burst 10'");
  }
  options.loss_burst = burst;
  return Status::Ok();
}

// P | P burst N | gemodel P burst N | gemodel P N
Status ParseLoss(WordReader& words, bool gemodel, LinkOptions& options) {
  gemodel = words.TakeIf("gemodel") || gemodel;
  words.TakeIf("random");  // netem's `loss random 2%`
  if (Status s = Assign(options.loss, ParsePercent(words.Take())); !s.ok()) return s;
  options.loss_burst = 0;
  if (words.TakeIf("burst") || (gemodel && words.NextIsNumber())) return ParseBurst(words, options);
  if (gemodel) return Invalid("gemodel needs a mean burst length, such as 'gemodel 5% burst 10'");
  return Status::Ok();
}

Status ParseDelay(WordReader& words, LinkOptions& options) {
  if (Status s = Assign(options.delay, ParseTime(words.Take())); !s.ok()) return s;
  return words.NextIsNumber() ? Assign(options.jitter, ParseTime(words.Take())) : Status::Ok();
}

Status ParseQueue(std::string_view text, LinkOptions& options) {
  if (Result<Duration> time = ParseTime(text); time.ok()) {
    options.queue_time = *time;
    options.queue_bytes = ByteCount(0);
    return time->count() > 0 ? Status::Ok() : Invalid("a queue of no time holds no packet");
  }
  Result<ByteCount> bytes = ParseBytes(text);
  if (!bytes.ok()) return Invalid(Quoted(text) + " is neither a time (50ms) nor a size (256kb)");
  if (bytes->value() == 0) return Invalid("a queue of no bytes holds no packet");
  options.queue_bytes = *bytes;
  return Status::Ok();
}

Status ParseOutage(std::string_view text, LinkOptions& options) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos)
    return Invalid(Quoted(text) + " is not an outage; write from..to, such as 3s..5s");
  Outage outage;
  if (Status s = Assign(outage.from, ParseTime(text.substr(0, dots))); !s.ok()) return s;
  if (Status s = Assign(outage.to, ParseTime(text.substr(dots + 2))); !s.ok()) return s;
  options.outages.push_back(outage);
  return Status::Ok();
}

Status ParseOne(std::string_view key, WordReader& words, LinkOptions& options) {
  if (key == "jitter-reorders") return options.jitter_reorders = true, Status::Ok();
  if (words.AtEnd()) return Invalid("a value is missing");
  if (key == "rate") return Assign(options.rate, ParseRate(words.Take()));
  if (key == "delay") return ParseDelay(words, options);
  if (key == "jitter") return Assign(options.jitter, ParseTime(words.Take()));
  if (key == "loss") return ParseLoss(words, false, options);
  if (key == "gemodel") return ParseLoss(words, true, options);
  if (key == "queue" || key == "limit") return ParseQueue(words.Take(), options);
  if (key == "reorder") return Assign(options.reorder, ParsePercent(words.Take()));
  if (key == "duplicate") return Assign(options.duplicate, ParsePercent(words.Take()));
  if (key == "corrupt") return Assign(options.corrupt, ParsePercent(words.Take()));
  if (key == "mtu") return Assign(options.mtu, ParseBytes(words.Take()));
  if (key == "outage") return ParseOutage(words.Take(), options);
  return Invalid(
      "unknown word; known are rate delay jitter jitter-reorders loss gemodel queue limit reorder duplicate "
      "corrupt "
      "mtu outage");
}

Status CheckRatio(double value, std::string_view name) {
  if (value >= 0 && value <= 1) return Status::Ok();
  return Invalid(std::string(name) + " " + PercentText(value) + " is outside 0%..100%");
}

Status CheckLoss(const LinkOptions& o) {
  if (Status s = CheckRatio(o.loss, "loss"); !s.ok()) return s;
  if (o.loss_burst == 0 || GilbertElliott::Possible(o.loss, o.loss_burst)) return Status::Ok();
  const std::string what = "loss " + PercentText(o.loss) + " in bursts of " + Shortest(o.loss_burst);
  if (!(o.loss_burst >= 1)) return Invalid(what + " is impossible: a burst has at least one packet");
  return Invalid(what + " is impossible: the gaps between bursts would be shorter than one packet");
}

Status CheckTimes(const LinkOptions& o) {
  if (o.delay.count() < 0 || o.delay > hours(1))
    return Invalid("delay " + TimeText(o.delay) + " is outside 0..1h");
  if (o.jitter.count() < 0 || o.jitter > o.delay) {
    return Invalid("jitter " + TimeText(o.jitter) + " is larger than the delay " + TimeText(o.delay) +
                   ": a packet would arrive before it was sent");
  }
  for (const Outage& outage : o.outages) {
    if (outage.from.count() < 0 || outage.to <= outage.from) {
      return Invalid("outage " + TimeText(outage.from) + ".." + TimeText(outage.to) +
                     " ends before it begins");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<Bandwidth> ParseRate(std::string_view text) {
  if (Lower(text) == "unlimited") return Bandwidth::Zero();
  if (Lower(text).ends_with("bps")) {
    return Invalid(Quoted(text) +
                   ": tc's bps means bytes per second, most people's means bits; write mbit, kbit or gbit");
  }
  const auto bps = ParseWithUnit(text, {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}},
                                 "a rate such as 200mbit or 1gbit");
  if (!bps.ok()) return bps.status();
  if (*bps < 1 || *bps > 1e12) return Invalid("rate " + Quoted(text) + " is outside 1bit..1000gbit");
  return Bandwidth::BitsPerSecond(std::llround(*bps));
}

Result<Duration> ParseTime(std::string_view text) {
  const auto ns =
      ParseWithUnit(text, {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}, "a time such as 25ms or 500us");
  if (!ns.ok()) return ns.status();
  if (*ns > 1e18) return Invalid("time " + Quoted(text) + " is too long");
  return Duration(std::llround(*ns));
}

Result<ByteCount> ParseBytes(std::string_view text) {
  const auto bytes =
      ParseWithUnit(text, {{"b", 1}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"kib", 1024}, {"mib", 1048576}},
                    "a size such as 256kb or 1500b");
  if (!bytes.ok()) return bytes.status();
  if (*bytes > 1e15) return Invalid("size " + Quoted(text) + " is too large");
  return ByteCount(std::llround(*bytes));
}

Result<double> ParsePercent(std::string_view text) {
  const auto percent = ParseWithUnit(text, {{"%", 1}}, "a percentage such as 2%");
  if (!percent.ok()) return percent.status();
  if (*percent > 100) return Invalid(Quoted(text) + " is more than 100%");
  return *percent / 100;
}

Result<LinkOptions> ParseLinkOptions(std::string_view text, const LinkOptions& base) {
  LinkOptions options = base;
  WordReader words(text);
  while (!words.AtEnd()) {
    const std::string_view key = words.Take();
    if (const Status s = ParseOne(Lower(key), words, options); !s.ok()) {
      return Invalid("link option " + Quoted(key) + ": " + s.message());
    }
  }
  if (const Status s = options.Validate(); !s.ok()) return s;
  return options;
}

Status LinkOptions::Validate() const {
  if (rate < Bandwidth::Zero()) return Invalid("the rate is negative");
  if (queue_time.count() <= 0 && queue_bytes.value() <= 0) return Invalid("the queue holds no packet");
  if (queue_bytes.value() < 0 || mtu.value() < 0) return Invalid("a number of bytes is negative");
  if (Status s = CheckTimes(*this); !s.ok()) return s;
  if (Status s = CheckLoss(*this); !s.ok()) return s;
  if (Status s = CheckRatio(reorder, "reorder"); !s.ok()) return s;
  if (Status s = CheckRatio(duplicate, "duplicate"); !s.ok()) return s;
  if (Status s = CheckRatio(corrupt, "corrupt"); !s.ok()) return s;
  if (reorder > 0 && delay.count() == 0) {
    return Invalid("reorder needs a delay: a packet overtakes by skipping it");
  }
  return Status::Ok();
}

std::string LinkOptions::ToString() const {
  std::string out = "rate " + (rate.IsZero() ? std::string("unlimited") : RateText(rate));
  out += " delay " + TimeText(delay);
  if (jitter.count() > 0) out += " jitter " + TimeText(jitter);
  if (jitter_reorders) out += " jitter-reorders";
  if (loss_burst > 0) {
    out += " loss gemodel " + PercentText(loss) + " burst " + Shortest(loss_burst);
  } else {
    out += " loss " + PercentText(loss);
  }
  if (queue_bytes.value() > 0) {
    out += " queue " + std::to_string(queue_bytes.value()) + "b";
  } else {
    out += " queue " + TimeText(queue_time);
  }
  if (reorder > 0) out += " reorder " + PercentText(reorder);
  if (duplicate > 0) out += " duplicate " + PercentText(duplicate);
  if (corrupt > 0) out += " corrupt " + PercentText(corrupt);
  if (mtu.value() > 0) out += " mtu " + std::to_string(mtu.value()) + "b";
  for (const Outage& o : outages) out += " outage " + TimeText(o.from) + ".." + TimeText(o.to);
  return out;
}

}  // namespace longhaul::wan
