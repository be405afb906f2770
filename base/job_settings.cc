#include "base/job_settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>
#include <vector>

namespace longhaul {
namespace {

using Range = JobSetting::Range;

constexpr Range kShare = {};
constexpr Range kPositiveShare = {.above_low = true};
constexpr Range kFactorOrOff = {.low = 1, .high = 1e6, .or_zero = true};
constexpr Range kAny = {.high = std::numeric_limits<double>::infinity()};
constexpr double kDaySeconds = 86400;

constexpr JobSetting kSettings[] = {
    {"policy", &JobSpec::policy, kAny, "what is done about lost low-priority chunks"},
    {"shift_alpha", &JobSpec::shift_alpha, kPositiveShare, "policy shift: step by which it follows"},
    {"priority", &JobSpec::priority, kAny,
     "how chunks are ranked: by energy, by layer (front first), or only the top elements travel"},
    {"high_share", &JobSpec::high_share, kShare, "share of chunks sent reliably and with FEC"},
    {"high_energy", &JobSpec::high_energy, kShare,
     "instead of --high-share: as many chunks as hold this share of the energy"},
    {"lost_energy", &JobSpec::lost_energy, kShare,
     "send more chunks reliably where else a round would lose more than this share of the energy; 1 = never"},
    {"topk_share", &JobSpec::topk_share, kPositiveShare, "priority topk: share of elements that travels",
     "--topk"},
    {"bubble_threshold", &JobSpec::bubble_threshold, kShare,
     "raw loss of a window above which its lost chunks are filled"},
    {"halve_threshold", &JobSpec::halve_threshold, kShare,
     "loss beyond what the path loses by itself at and above which a sender halves its rate"},
    {"close_ratio", &JobSpec::close_ratio, kShare,
     "share of the low-priority chunks' energy that lets a window close"},
    {"close_ratio_high", &JobSpec::close_ratio_high, kShare,
     "share of the high-priority chunks that a window needs to close; the policy makes up for the others"},
    {"downlink", &JobSpec::downlink, kAny,
     "lossy: results may lose chunks, which come again with the next round; needs an optimizer"},
    {"hash_rounds",
     &JobSpec::hash_rounds,
     {.low = 1, .high = 1e6},
     "downlink lossy: every so many rounds all arrives and a hash proves that all have the same"},
    {"straggler_factor", &JobSpec::straggler_factor, kFactorOrOff,
     "leave a worker out of a round that takes so many times what the others usually do; 0 = wait"},
    {"round_bound",
     &JobSpec::round_bound,
     {.high = kDaySeconds},
     "no round waits longer, in seconds (the first one: from its initial values on); 0 = no bound"},
    {"round_patience", &JobSpec::round_patience, kFactorOrOff,
     "leave a live worker out that takes so many times what it and the others usually do, and 12 idle "
     "time-outs (60 in the first rounds); 0 = wait"},
    {"staleness",
     &JobSpec::staleness,
     {.low = -1, .high = 1000},
     "pushes of a tensor by which a worker may be ahead of the slowest: 0 = BSP, N = SSP, -1 = ASP"},
    {"quorum",
     &JobSpec::quorum,
     {.high = 1024},
     "a round closes when so many workers' windows are in and a learned grace has passed; 0 = all"},
    {"deterministic", &JobSpec::deterministic, kAny,
     "sum in rank order: bitwise the same whatever the order of arrival"},
    {"norm_guard", &JobSpec::norm_guard, kFactorOrOff,
     "refuse a chunk whose norm is so many times the usual one; 0 = only what is not finite"},
    {"max_weight_share", &JobSpec::max_weight_share, kShare,
     "most of a round's weight that one worker counts with; 0 = that of one with three times the others'; "
     "less than an even share = all count alike"},
    {"aggregation", &JobSpec::aggregation, kAny,
     "what becomes of the workers' gradients: their mean, what a minority of them cannot move, or a rule of "
     "--plugin-aggregation"},
    {"liar_share",
     &JobSpec::liar_share,
     {.high = 0.5, .above_low = true},
     "robust aggregation: share of the workers that may lie"},
    {"fec_k",
     &JobSpec::fec_k,
     {.low = 8, .high = 24, .or_zero = true, .step = 4},
     "source symbols per FEC block; 0 = no FEC"},
    {"fec_depth",
     &JobSpec::fec_depth,
     {.high = 255},
     "FEC blocks interleaved against bursts; 0 = by the bursts that are seen"},
    {"idle_timeout",
     &JobSpec::idle_timeout,
     {.low = 0.1, .high = kDaySeconds},
     "seconds of silence after which a worker is dead"},
    {"seed", &JobSpec::seed, kAny, "seed of the job: the workers' send-order rotation"},
};

Status Invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

std::string TextOf(std::integral auto number) { return std::to_string(number); }
std::string TextOf(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return std::string(text, end);
}
std::string TextOf(bool on) { return on ? "true" : "false"; }
std::string TextOf(Duration duration) { return TextOf(std::chrono::duration<double>(duration).count()); }
template <typename E>
requires std::is_enum_v<E> std::string TextOf(E value) { return std::string(NameOf(value)); }

// "a, b or c".
template <typename Names>
std::string Alternatives(const Names& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  }
  return text;
}

bool Contains(const Range& range, double value) {
  if (range.or_zero && value == 0) return true;
  // Written so that NaN is outside.
  if (!(value >= range.low && value <= range.high) || (range.above_low && value == range.low)) return false;
  return range.step == 0 || std::fmod(value - range.low, range.step) == 0;
}

Status Read(std::string_view text, double* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end != text.data() + text.size())
    return Invalid(std::string(text) + " is not a number");
  if (!std::isfinite(*value)) return Invalid(std::string(text) + " is not a finite number");
  return {};
}

Status Read(std::string_view text, Duration* value) {
  double seconds = 0;
  if (Status status = Read(text, &seconds); !status.ok()) return status;
  if (std::abs(seconds) > 1e9) return Invalid(std::string(text) + " s is too long");
  *value = Duration(std::llround(seconds * 1e9));
  if (seconds > 0 && *value == Duration(0)) return Invalid(std::string(text) + " s is below a nanosecond");
  return {};
}

template <std::unsigned_integral T>
Status Read(std::string_view text, T* value) {
  if (text.starts_with('-')) return Invalid(std::string(text) + " is negative");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc::result_out_of_range) {
    return Invalid(std::string(text) + " is above " + TextOf(std::numeric_limits<T>::max()));
  }
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return Invalid(std::string(text) + " is not a whole number");
}

Status Read(std::string_view text, int32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return Invalid(std::string(text) + " is not a whole number");
}

Status Read(std::string_view text, bool* value) {
  if (text != "true" && text != "false") return Invalid(std::string(text) + " is neither true nor false");
  *value = text == "true";
  return {};
}

template <typename E>
requires std::is_enum_v<E> Status Read(std::string_view text, E* value) {
  const std::optional<E> known = FromName<E>(text);
  if (known) *value = *known;
  return known ? Status() : Invalid("\"" + std::string(text) + "\" is unknown");
}

template <typename E>
requires std::is_enum_v<E>
bool IsIn(const Range&, E value) { return static_cast<size_t>(value) < kNamesOf<E>.size(); }
bool IsIn(const Range& range, Duration value) {
  return Contains(range, std::chrono::duration<double>(value).count());
}
bool IsIn(const Range& range, double value) { return Contains(range, value); }
bool IsIn(const Range& range, std::integral auto value) {
  return Contains(range, static_cast<double>(value));
}

}  // namespace

std::span<const JobSetting> JobSettings() { return kSettings; }

std::string JobSetting::Flag() const {
  if (!flag.empty()) return std::string(flag);
  std::string text = "--" + std::string(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

std::string JobSetting::Requirement() const {
  return std::visit(
      [this]<typename T>(T JobSpec::*) -> std::string {
        if constexpr (std::is_enum_v<T>) {
          return "one of " + Alternatives(kNamesOf<T>);
        } else if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else {
          if (std::isinf(range.high)) return "a whole number";
          if (range.step > 0) {
            std::vector<std::string> values;
            if (range.or_zero) values.push_back("0");
            for (int64_t value = static_cast<int64_t>(range.low); value <= static_cast<int64_t>(range.high);
                 value += static_cast<int64_t>(range.step))
              values.push_back(TextOf(value));
            return Alternatives(values);
          }
          if (range.above_low) return "above " + TextOf(range.low) + " and at most " + TextOf(range.high);
          const std::string both =
              "in " + TextOf(range.low) + ".." +
              (range.high >= 1e5 ? TextOf(static_cast<int64_t>(range.high)) : TextOf(range.high));
          return range.or_zero ? "0 (off) or " + both : both;
        }
      },
      field);
}

std::string JobSetting::Text(const JobSpec& spec) const {
  return std::visit([&spec](auto member) { return TextOf(spec.*member); }, field);
}

bool JobSetting::InRange(const JobSpec& spec) const {
  return std::visit([&](auto member) { return IsIn(range, spec.*member); }, field);
}

Status JobSetting::Set(std::string_view text, JobSpec* spec) const {
  JobSpec changed = *spec;
  if (Status read = std::visit([&](auto member) { return Read(text, &(changed.*member)); }, field);
      !read.ok()) {
    return Invalid(read.message() + "; it must be " + Requirement());
  }
  if (!InRange(changed)) return Invalid(std::string(text) + " must be " + Requirement());
  *spec = changed;
  return {};
}

Status JobSpec::Validate() const {
  for (const JobSetting& setting : kSettings) {
    if (setting.InRange(*this)) continue;
    return Invalid(std::string(setting.name) + " is " + setting.Text(*this) + ", but must be " +
                   setting.Requirement());
  }
  const bool remembers = policy == LossPolicy::kResidual || policy == LossPolicy::kShift;
  if (priority == Priority::kTopK && !remembers) {
    return Invalid(
        "priority topk needs a policy that remembers what did not travel: residual or shift, not " +
        std::string(NameOf(policy)));
  }
  const bool adds_up =
      policy == LossPolicy::kZero || policy == LossPolicy::kCount || policy == LossPolicy::kStale;
  if (aggregation != Aggregation::kMean && !adds_up) {
    return Invalid("aggregation " + std::string(NameOf(aggregation)) +
                   " needs a policy whose contributions are single gradients: zero, count or stale, not " +
                   std::string(NameOf(policy)));
  }
  // A round of some: which ones is a matter of time, and a minority of all may be most of them.
  const std::string partial = staleness != 0 ? "staleness " + std::to_string(staleness)
                              : quorum != 0  ? "quorum " + std::to_string(quorum)
                                             : "";
  if (partial.empty()) return {};
  if (deterministic) return Invalid(partial + " is by order of arrival, which deterministic excludes");
  if (aggregation != Aggregation::kMean) {
    return Invalid(partial + " needs the mean: aggregation " + std::string(NameOf(aggregation)) +
                   " holds against a minority of those in a step, which may be few");
  }
  if (staleness == 0) return {};
  if (quorum != 0) {
    return Invalid("a quorum closes synchronous rounds: quorum " + std::to_string(quorum) +
                   " needs staleness 0, not " + std::to_string(staleness));
  }
  if (policy == LossPolicy::kShift) {
    return Invalid(partial + " needs a policy other than shift, which expects every worker in every round");
  }
  if (downlink == Downlink::kLossy) {
    return Invalid(partial + " needs downlink reliable: a lossy one repays with the next round of all");
  }
  return {};
}

}  // namespace longhaul
