#include "wan/link_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <utility>

#include "base/units_text.h"
#include "wan/link_model.h"

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

// One name per meaning, so that no value is set twice under two names.
std::string Canonical(std::string_view word) {
  std::string key = Lower(word);
  if (key == "drop") return "loss";
  if (key == "dup") return "duplicate";
  if (key == "limit") return "queue";
  return key;
}

class LinkParser {
 public:
  LinkParser(std::string_view text, const LinkOptions& base, BareShares bare)
      : words_(text), options_(base), bare_(bare) {}

  Result<LinkOptions> Parse() {
    while (!words_.AtEnd()) {
      const std::string_view word = words_.Take();
      if (const Status s = One(Canonical(word)); !s.ok()) {
        return Invalid("link option " + Quoted(word) + ": " + s.message());
      }
    }
    if (seen_.contains("burst") && options_.loss == 0) return Invalid("a burst has no effect without loss");
    if (const Status s = options_.Validate(); !s.ok()) return s;
    return options_;
  }

 private:
  Status One(const std::string& key) {
    if (key == "jitter-reorders") return options_.jitter_reorders = true, Status::Ok();
    if (words_.AtEnd()) return Invalid("a value is missing");
    if (key == "outage") return ParseOutage();
    if (!seen_.insert(key == "gemodel" ? "loss" : key).second) return Invalid("given twice");
    if (key == "rate") return Assign(options_.rate, ParseRate(words_.Take()));
    if (key == "delay") return ParseDelay();
    if (key == "jitter") return Assign(options_.jitter, ParseTime(words_.Take()));
    if (key == "loss" || key == "gemodel") return ParseLoss(key == "gemodel");
    if (key == "burst") return ParseBurst();
    if (key == "queue") return ParseQueue(words_.Take());
    if (key == "reorder") return Share(options_.reorder);
    if (key == "duplicate") return Share(options_.duplicate);
    if (key == "corrupt") return Share(options_.corrupt);
    if (key == "mtu") return Assign(options_.mtu, ParseBytes(words_.Take()));
    return Invalid(
        "unknown word; known are rate delay jitter jitter-reorders loss (drop) gemodel burst queue (limit) "
        "reorder duplicate (dup) corrupt mtu outage");
  }

  Status Share(double& target) {
    return Assign(target,
                  bare_ == BareShares::kRatio ? ParseShare(words_.Take()) : ParsePercent(words_.Take()));
  }

  // P | P burst N | gemodel P burst N | gemodel P N
  Status ParseLoss(bool gemodel) {
    gemodel = words_.TakeIf("gemodel") || gemodel;
    words_.TakeIf("random");  // netem's `loss random 2%`
    if (Status s = Share(options_.loss); !s.ok()) return s;
    if (!seen_.contains("burst")) options_.loss_burst = 0;
    if (gemodel && !words_.TakeIf("burst") && !words_.NextIsNumber()) {
      return Invalid("gemodel needs a mean burst length, such as 'gemodel 5% burst 10'");
    }
    return gemodel ? ParseBurst() : Status::Ok();
  }

  Status ParseBurst() {
    const std::string_view text = words_.Take();
    double burst = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), burst);
    if (error != std::errc() || end != text.data() + text.size() || !(burst >= 1)) {
      return Invalid(Quoted(text) +
                     " is not a mean burst length; write packets, at least 1, such as 'burst 10'");
    }
    options_.loss_burst = burst;
    return Status::Ok();
  }

  Status ParseDelay() {
    if (Status s = Assign(options_.delay, ParseTime(words_.Take())); !s.ok()) return s;
    return words_.NextIsNumber() ? Assign(options_.jitter, ParseTime(words_.Take())) : Status::Ok();
  }

  Status ParseQueue(std::string_view text) {
    if (Result<Duration> time = ParseTime(text); time.ok()) {
      options_.queue_time = *time;
      options_.queue_bytes = ByteCount(0);
      return time->count() > 0 ? Status::Ok() : Invalid("a queue of no time holds no packet");
    }
    Result<ByteCount> bytes = ParseBytes(text);
    // netem's bare `limit 1000` counts packets.
    const bool bare = std::isdigit(static_cast<unsigned char>(text.back())) != 0;
    if (!bytes.ok() || bare) return Invalid(Quoted(text) + " is neither a time (50ms) nor a size (256kb)");
    if (bytes->value() == 0) return Invalid("a queue of no bytes holds no packet");
    options_.queue_bytes = *bytes;
    return Status::Ok();
  }

  Status ParseOutage() {
    const std::string_view text = words_.Take();
    const size_t dots = text.find("..");
    if (dots == std::string_view::npos)
      return Invalid(Quoted(text) + " is not an outage; write from..to, such as 3s..5s");
    Outage outage;
    if (Status s = Assign(outage.from, ParseTime(text.substr(0, dots))); !s.ok()) return s;
    if (Status s = Assign(outage.to, ParseTime(text.substr(dots + 2))); !s.ok()) return s;
    options_.outages.push_back(outage);
    return Status::Ok();
  }

  WordReader words_;
  LinkOptions options_;
  BareShares bare_;
  std::set<std::string> seen_;
};

Status CheckRatio(double value, std::string_view name) {
  if (value >= 0 && value <= 1) return Status::Ok();
  return Invalid(std::string(name) + " " + PercentText(value) + " is outside 0%..100%");
}

Status CheckLoss(const LinkOptions& o) {
  if (Status s = CheckRatio(o.loss, "loss"); !s.ok()) return s;
  if (o.loss_burst == 0 || GilbertElliott::Possible(o.loss, o.loss_burst)) return Status::Ok();
  const std::string what = "loss " + PercentText(o.loss) + " in bursts of " + NumberText(o.loss_burst);
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

Result<LinkOptions> ParseLinkOptions(std::string_view text, const LinkOptions& base, BareShares bare) {
  return LinkParser(text, base, bare).Parse();
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
    out += " loss gemodel " + PercentText(loss) + " burst " + NumberText(loss_burst);
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
