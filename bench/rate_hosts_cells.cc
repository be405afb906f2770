#include "bench/rate_hosts_cells.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/random.h"

namespace longhaul::bench {
namespace {

using std::chrono::milliseconds;

struct Dimension {
  std::string_view key;
  std::vector<std::string_view> values;
};

// In the order of HostDimension. Stalls of 10 ms are longer than what the pacer forgives, so it marks them
// itself.
const std::array<Dimension, kHostDimensions> kDimensions{{
    {"cap", {"200", "10", "40", "100", "800"}},
    {"rtt", {"40", "1", "5", "20", "100", "200"}},
    {"queue", {"5ms", "1ms", "2ms", "10ms", "50ms", "0.02bdp", "0.05bdp", "0.25bdp", "1bdp", "4bdp"}},
    {"loss", {"0", "0.1", "1", "5", "10", "20"}},
    {"burst", {"0", "5", "10"}},
    {"snd", {"0", "1/20", "4/100", "10/50", "1/20m", "4/100m"}},
    {"rcv", {"0", "1/20", "4/100"}},
    {"ack", {"0", "5"}},
    {"jit", {"0", "1", "5"}},
    {"pol", {"0", "10", "50", "200"}},
    {"grant", {"0", "0.5", "0.9", "1.1"}},
    {"flows", {"1", "2", "4", "16"}},
    {"cross", {"none", "cubic", "bbr"}},
    {"app", {"bulk", "2bdp", "0.3bdp"}},
}};

constexpr double kPolicerShare = 0.5;  // of the capacity
// A round of less is no round.
constexpr int kLeastRound = 10;

constexpr auto kAll = [] {
  std::array<HostDimension, kHostDimensions> all{};
  for (size_t i = 0; i < kHostDimensions; ++i) all[i] = static_cast<HostDimension>(i);
  return all;
}();

// A number and what follows it.
struct Quantity {
  double value = 0;
  std::string_view unit;
};

std::optional<Quantity> ParseQuantity(std::string_view text) {
  Quantity quantity;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), quantity.value);
  if (error != std::errc() || quantity.value < 0 || !std::isfinite(quantity.value)) return std::nullopt;
  quantity.unit = text.substr(static_cast<size_t>(end - text.data()));
  return quantity;
}

double NumberOf(std::string_view text) { return ParseQuantity(text).value_or(Quantity()).value; }

Duration FromMilliseconds(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

bool ValidValue(HostDimension dimension, std::string_view text) {
  const auto known = HostValues(dimension);
  if (std::find(known.begin(), known.end(), text) != known.end()) return true;
  const std::optional<Quantity> quantity = ParseQuantity(text);
  if (!quantity) return false;
  switch (dimension) {
    case HostDimension::kQueue:
      return quantity->value > 0 && (quantity->unit == "ms" || quantity->unit == "bdp");
    case HostDimension::kApp:
      return quantity->value > 0 && quantity->unit == "bdp";
    case HostDimension::kSenderStall:
    case HostDimension::kReceiverStall: {
      if (!quantity->unit.starts_with('/')) return false;
      const std::optional<Quantity> period = ParseQuantity(quantity->unit.substr(1));
      return period && period->value > 0 && (period->unit.empty() || period->unit == "m");
    }
    case HostDimension::kCross:
      return false;
    case HostDimension::kCapacity:
    case HostDimension::kRtt:
      return quantity->value > 0 && quantity->unit.empty();
    case HostDimension::kFlows:
      return quantity->value >= 1 && quantity->value <= 1000 && quantity->unit.empty();
    default:
      return quantity->unit.empty();
  }
}

// Three digits, without zeros at the end.
std::string ShortNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

}  // namespace

std::string_view HostDimensionKey(HostDimension dimension) {
  return kDimensions[static_cast<size_t>(dimension)].key;
}

std::span<const std::string_view> HostValues(HostDimension dimension) {
  return kDimensions[static_cast<size_t>(dimension)].values;
}

// --- A cell ---

HostCell::HostCell() {
  for (size_t i = 0; i < kHostDimensions; ++i) values_[i] = kDimensions[i].values.front();
}

std::optional<HostCell> HostCell::Parse(std::string_view name) {
  HostCell cell;
  while (!name.empty()) {
    const size_t end = std::min(name.find(' '), name.size());
    const std::string_view word = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    if (word.empty()) continue;
    const size_t equals = std::min(word.find('='), word.size());
    const auto at = std::find_if(kAll.begin(), kAll.end(), [&](HostDimension dimension) {
      return HostDimensionKey(dimension) == word.substr(0, equals);
    });
    if (at == kAll.end() || equals == word.size()) return std::nullopt;
    const std::string_view value = word.substr(equals + 1);
    if (!ValidValue(*at, value)) return std::nullopt;
    cell.Set(*at, std::string(value));
  }
  if (!cell.Valid()) return std::nullopt;
  return cell;
}

std::string HostCell::Name() const {
  std::string name;
  for (size_t i = 0; i < kHostDimensions; ++i) {
    name += (name.empty() ? "" : " ") + std::string(kDimensions[i].key) + "=" + values_[i];
  }
  return name;
}

// Bursts of mean 1 cannot lose more than half (wan/link_model.h); nothing here comes near.
bool HostCell::Valid() const {
  const double burst = Number(HostDimension::kBurst);
  return loss() <= 0.45 && (burst == 0 || burst >= 1);
}

Duration HostCell::queue() const {
  const double value = Number(HostDimension::kQueue);
  const bool in_bdp = (*this)[HostDimension::kQueue].ends_with("bdp");
  const Duration wanted = in_bdp ? Duration(static_cast<int64_t>(value * static_cast<double>(rtt().count())))
                                 : FromMilliseconds(value);
  return std::max(wanted, capacity().TransferTime(transport::sim::kDatagram * int64_t{4}));
}

Bandwidth HostCell::policer_rate() const {
  return Number(HostDimension::kPolicer) > 0 ? capacity() * kPolicerShare : Bandwidth();
}

Bandwidth HostCell::grant() const { return capacity() * (Number(HostDimension::kGrant) / flows()); }

std::optional<RateControl> HostCell::cross() const {
  const std::string& name = (*this)[HostDimension::kCross];
  if (name == "none") return std::nullopt;
  return name == "cubic" ? RateControl::kCubic : RateControl::kBbr;
}

int HostCell::round_packets() const {
  if (bulk()) return 0;
  const double bdp = capacity() * rtt() / transport::sim::kDatagram;
  return std::max(kLeastRound, static_cast<int>(Number(HostDimension::kApp) * bdp / flows()));
}

Bandwidth HostCell::Attainable() const {
  Bandwidth rate = capacity();
  if (!policer_rate().IsZero()) rate = std::min(rate, policer_rate());
  if (!grant().IsZero()) rate = std::min(rate, grant() * static_cast<double>(flows()));
  return rate;
}

transport::sim::LinkOptions HostCell::Link(uint64_t seed) const {
  transport::sim::LinkOptions link;
  link.rate = capacity();
  link.rtt = rtt();
  link.buffer = capacity() * queue();
  link.loss = loss();
  link.mean_burst = link.loss > 0 ? Number(HostDimension::kBurst) : 0;
  link.ack_batch = Milliseconds(HostDimension::kAckBatch);
  link.jitter = Milliseconds(HostDimension::kJitter);
  link.jitter_in_order = true;
  link.policer_rate = policer_rate();
  link.policer_burst = ByteCount(static_cast<int64_t>(Number(HostDimension::kPolicer) * 1000));
  link.seed = seed;
  return link;
}

double HostCell::Number(HostDimension dimension) const { return NumberOf((*this)[dimension]); }

Duration HostCell::Milliseconds(HostDimension dimension) const { return FromMilliseconds(Number(dimension)); }

Stalls HostCell::StallsOf(HostDimension dimension) const {
  const std::string& text = (*this)[dimension];
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return {};
  return {FromMilliseconds(NumberOf(text)),
          FromMilliseconds(NumberOf(std::string_view(text).substr(slash + 1))), text.ends_with('m')};
}

// --- Sets of cells ---

bool ExcludedPair(HostDimension a, std::string_view value_a, HostDimension b, std::string_view value_b) {
  if (a > b) return ExcludedPair(b, value_b, a, value_a);
  // Bursts of no loss.
  return a == HostDimension::kLoss && b == HostDimension::kBurst && value_a == "0" && value_b != "0";
}

namespace {

constexpr size_t kUnset = SIZE_MAX;
constexpr uint64_t kCoverSeed = 20261123;
constexpr int kCovers = 2;       // a pair is seen in two companies
constexpr int kCandidates = 40;  // cells tried for each one taken: more make the cover hardly smaller

using Choice = std::array<size_t, kHostDimensions>;  // index of the value of each dimension

size_t ValueCount(size_t dimension) { return kDimensions[dimension].values.size(); }

bool Excluded(size_t a, size_t value_a, size_t b, size_t value_b) {
  return ExcludedPair(kAll[a], kDimensions[a].values[value_a], kAll[b], kDimensions[b].values[value_b]);
}

// Which pairs of values no cell has yet.
class PairTable {
 public:
  PairTable() {
    for (size_t a = 0; a < kHostDimensions; ++a) {
      first_[a] = values_;
      values_ += ValueCount(a);
    }
    open_.assign(values_ * values_, false);
    for (size_t a = 0; a < kHostDimensions; ++a) {
      for (size_t b = a + 1; b < kHostDimensions; ++b) AddDimensions(a, b);
    }
  }

  bool Open(size_t a, size_t value_a, size_t b, size_t value_b) const {
    return open_[At(a, value_a, b, value_b)];
  }
  size_t left() const { return left_; }

  // How many open pairs this value makes with what is chosen.
  int Gain(const Choice& choice, size_t dimension, size_t value) const {
    int gain = 0;
    for (size_t other = 0; other < kHostDimensions; ++other) {
      if (other != dimension && choice[other] != kUnset) gain += Open(dimension, value, other, choice[other]);
    }
    return gain;
  }

  // Both counted once.
  int Gain(const Choice& choice) const {
    int gain = 0;
    for (size_t i = 0; i < kHostDimensions; ++i) gain += Gain(choice, i, choice[i]);
    return gain / 2;
  }

  void Close(const Choice& choice) {
    for (size_t a = 0; a < kHostDimensions; ++a) {
      for (size_t b = a + 1; b < kHostDimensions; ++b) {
        if (!Open(a, choice[a], b, choice[b])) continue;
        open_[At(a, choice[a], b, choice[b])] = open_[At(b, choice[b], a, choice[a])] = false;
        --left_;
      }
    }
  }

  // The n-th open pair as a choice of two.
  Choice Nth(size_t n) const {
    Choice choice;
    choice.fill(kUnset);
    for (size_t a = 0; a < kHostDimensions; ++a) {
      for (size_t b = a + 1; b < kHostDimensions; ++b) {
        for (size_t i = 0; i < ValueCount(a) * ValueCount(b); ++i) {
          if (!Open(a, i / ValueCount(b), b, i % ValueCount(b)) || n-- > 0) continue;
          choice[a] = i / ValueCount(b);
          choice[b] = i % ValueCount(b);
          return choice;
        }
      }
    }
    return choice;
  }

 private:
  size_t At(size_t a, size_t value_a, size_t b, size_t value_b) const {
    return (first_[a] + value_a) * values_ + first_[b] + value_b;
  }
  void AddDimensions(size_t a, size_t b) {
    for (size_t i = 0; i < ValueCount(a); ++i) {
      for (size_t j = 0; j < ValueCount(b); ++j) {
        if (Excluded(a, i, b, j)) continue;
        open_[At(a, i, b, j)] = open_[At(b, j, a, i)] = true;
        ++left_;
      }
    }
  }

  std::array<size_t, kHostDimensions> first_{};
  size_t values_ = 0;
  std::vector<bool> open_;
  size_t left_ = 0;
};

void Shuffle(std::vector<size_t>* items, Random* random) {
  for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[random->Below(i)]);
}

// The value with the largest gain among those that nothing chosen excludes. Among equals a harmless one, so
// that troubles do not hide one another; of capacity, RTT and queue any.
size_t BestValue(const PairTable& pairs, const Choice& choice, size_t dimension, Random* random) {
  std::vector<size_t> values(ValueCount(dimension));
  std::iota(values.begin(), values.end(), size_t{0});
  if (dimension <= static_cast<size_t>(HostDimension::kQueue)) Shuffle(&values, random);
  size_t best = kUnset;
  int best_gain = -1;
  for (const size_t value : values) {
    bool allowed = true;
    for (size_t other = 0; other < kHostDimensions; ++other) {
      allowed = allowed && (choice[other] == kUnset || !Excluded(dimension, value, other, choice[other]));
    }
    const int gain = allowed ? pairs.Gain(choice, dimension, value) : -1;
    if (gain <= best_gain) continue;
    best_gain = gain;
    best = value;
  }
  return best;
}

Choice Candidate(const PairTable& pairs, Random* random) {
  Choice choice = pairs.Nth(random->Below(pairs.left()));
  std::vector<size_t> order(kHostDimensions);
  std::iota(order.begin(), order.end(), size_t{0});
  Shuffle(&order, random);
  for (const size_t dimension : order) {
    if (choice[dimension] == kUnset) choice[dimension] = BestValue(pairs, choice, dimension, random);
  }
  return choice;
}

HostCell CellOf(const Choice& choice) {
  HostCell cell;
  for (size_t i = 0; i < kHostDimensions; ++i) {
    cell.Set(kAll[i], std::string(kDimensions[i].values[choice[i]]));
  }
  return cell;
}

// Uniform in the logarithm: each decade is as likely.
double LogUniform(double least, double most, Random* random) {
  return least * std::pow(most / least, random->Uniform());
}

HostCell RandomCell(Random* random) {
  HostCell cell;
  cell.Set(HostDimension::kCapacity, ShortNumber(LogUniform(10, 800, random)));
  cell.Set(HostDimension::kRtt, ShortNumber(LogUniform(1, 200, random)));
  cell.Set(HostDimension::kQueue, random->Chance(0.5) ? ShortNumber(LogUniform(1, 50, random)) + "ms"
                                                      : ShortNumber(LogUniform(0.02, 4, random)) + "bdp");
  for (size_t i = static_cast<size_t>(HostDimension::kQueue) + 1; i < kHostDimensions; ++i) {
    const auto& values = kDimensions[i].values;
    const size_t other = 1 + random->Below(values.size() - 1);
    if (random->Chance(0.5)) cell.Set(kAll[i], std::string(values[other]));
  }
  if (cell[HostDimension::kLoss] == "0") cell.Set(HostDimension::kBurst, "0");
  return cell;
}

}  // namespace

namespace {

void AddCover(Random* random, std::vector<HostCell>* cells) {
  PairTable pairs;
  while (pairs.left() > 0) {
    Choice best = Candidate(pairs, random);
    for (int i = 1; i < kCandidates; ++i) {
      const Choice other = Candidate(pairs, random);
      if (pairs.Gain(other) > pairs.Gain(best)) best = other;
    }
    pairs.Close(best);
    cells->push_back(CellOf(best));
  }
}

}  // namespace

std::vector<HostCell> CoverCells() {
  Random random(kCoverSeed);
  std::vector<HostCell> cells;
  for (int i = 0; i < kCovers; ++i) AddCover(&random, &cells);
  return cells;
}

std::vector<HostCell> SingleCells() {
  std::vector<HostCell> cells;
  for (const std::string_view path : {"cap=200 rtt=40 queue=5ms", "cap=40 rtt=100 queue=1bdp",
                                      "cap=100 rtt=20 queue=0.05bdp", "cap=200 rtt=5 queue=1bdp"}) {
    const HostCell plain = *HostCell::Parse(path);
    cells.push_back(plain);
    for (size_t i = static_cast<size_t>(HostDimension::kQueue) + 1; i < kHostDimensions; ++i) {
      for (size_t value = 1; value < ValueCount(i); ++value) {
        HostCell cell = plain;
        cell.Set(kAll[i], std::string(kDimensions[i].values[value]));
        if (kAll[i] == HostDimension::kBurst) cell.Set(HostDimension::kLoss, "5");
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

std::vector<HostCell> RandomCells(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<HostCell> cells;
  for (size_t i = 0; i < count; ++i) cells.push_back(RandomCell(&random));
  return cells;
}

// By the names alone, without the table that made the cover.
std::vector<std::string> MissingPairs(std::span<const HostCell> cells) {
  std::vector<std::string> missing;
  for (const HostDimension a : kAll) {
    for (const HostDimension b : kAll) {
      if (a >= b) continue;
      for (const std::string_view value_a : HostValues(a)) {
        for (const std::string_view value_b : HostValues(b)) {
          const bool met = std::any_of(cells.begin(), cells.end(), [&](const HostCell& cell) {
            return cell[a] == value_a && cell[b] == value_b;
          });
          if (met == ExcludedPair(a, value_a, b, value_b))
            missing.push_back(std::string(HostDimensionKey(a)) + "=" + std::string(value_a) + " " +
                              std::string(HostDimensionKey(b)) + "=" + std::string(value_b));
        }
      }
    }
  }
  return missing;
}

}  // namespace longhaul::bench
