#include "base/allow_list.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace longhaul {
namespace {

constexpr std::string_view kWorker = "worker", kTool = "tool";

// For messages: what a terminal might take for a command is not repeated.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, 80)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (text.size() > 80 ? "...\"" : "\"");
}

Status Invalid(std::string_view entry, const std::string& what) {
  return {StatusCode::kInvalidArgument, "'allow': " + Quoted(entry) + " " + what};
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Decimal digits alone, at most `max`.
std::optional<uint32_t> ParseNumber(std::string_view text, uint32_t max) {
  uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end || value > max) return std::nullopt;
  return value;
}

// What stands behind the first `separator`, which goes with it; nullopt: there is none.
std::optional<std::string_view> SplitOff(std::string_view* text, char separator) {
  const size_t at = text->find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text->substr(at + 1);
  *text = text->substr(0, at);
  return rest;
}

Result<AllowEntry> ParseEntry(const std::string& given) {
  const std::string_view text = Trim(given);
  if (text.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "'allow': a name is empty; leave 'allow' out to let in every certificate of the job");
  }
  AllowEntry entry;
  std::string_view name = text;
  const std::optional<std::string_view> successor = SplitOff(&name, '+');
  std::optional<std::string_view> ranks = SplitOff(&name, ':');
  if (const size_t slash = name.find('/'); slash != std::string_view::npos) {
    entry.role = name.substr(0, slash);
    name.remove_prefix(slash + 1);
    if (entry.role != kWorker && entry.role != kTool)
      return Invalid(text, "has a role that is neither worker nor tool");
  }
  if (!IsKeyName(name) || (successor && !IsKeyName(*successor))) {
    return Invalid(text,
                   "is the name of no certificate: names are 1 to 64 of A-Z a-z 0-9 . _ -, and an entry is "
                   "[worker/|tool/]NAME[:RANKS[xWORKERS]][+SUCCESSOR]");
  }
  entry.name = name;
  if (successor) entry.successor = *successor;
  if (entry.role == kTool && (ranks || successor))
    return Invalid(text, "is a tool, which has no ranks and no successor");
  if (!ranks) return entry;
  const std::optional<std::string_view> workers = SplitOff(&*ranks, 'x');
  entry.ranks = RankRange::Parse(*ranks);
  if (!entry.ranks) return Invalid(text, "has ranks that are neither like 3 nor like 1-3, 0 to 1023");
  if (!workers) return entry;
  const auto count = ParseNumber(*workers, AllowEntry::kMaxWorkers);
  if (!count || *count == 0) {
    return Invalid(
        text, "stands for a number of workers that is not 1 to " + std::to_string(AllowEntry::kMaxWorkers));
  }
  entry.workers = *count;
  return entry;
}

}  // namespace

bool IsKeyName(std::string_view text) {
  // A certificate's common name holds no more (RFC 5280, ub-common-name).
  constexpr size_t kMaxBytes = 64;
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kMaxBytes && std::ranges::all_of(text, allowed);
}

std::optional<RankRange> RankRange::Parse(std::string_view text) {
  const std::optional<std::string_view> end = SplitOff(&text, '-');
  const std::optional<uint32_t> first = ParseNumber(text, kRanks - 1);
  const std::optional<uint32_t> last = end ? ParseNumber(*end, kRanks - 1) : first;
  if (!first || !last || *last < *first) return std::nullopt;
  return RankRange{*first, *last};
}

std::string RankRange::ToString() const {
  return std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
}

std::string AllowEntry::ToString() const {
  std::string text = role + "/" + name;
  if (ranks) text += ":" + ranks->ToString();
  if (workers != 1) text += "x" + std::to_string(workers);
  return successor.empty() ? text : text + "+" + successor;
}

Result<AllowList> AllowList::Parse(const std::vector<std::string>& texts) {
  AllowList list;
  for (const std::string& text : texts) {
    Result<AllowEntry> entry = ParseEntry(text);
    if (!entry.ok()) return entry.status();
    if (Status added = list.Add(*std::move(entry)); !added.ok()) return added;
  }
  if (Status fine = list.CheckSuccessors(); !fine.ok()) return fine;
  const bool workers =
      std::ranges::any_of(list.entries_, [](const AllowEntry& e) { return e.role == kWorker; });
  if (!texts.empty() && !workers)
    return Status(StatusCode::kInvalidArgument, "'allow' names no worker: no job could start");
  return list;
}

Status AllowList::Add(AllowEntry entry) {
  for (const AllowEntry& other : entries_) {
    if (other.role == entry.role && other.name == entry.name) {
      return Invalid(entry.name, "is there twice" + std::string(entry.role == kTool ? " as a tool" : ""));
    }
    if (!entry.ranks || !other.ranks) continue;
    const uint32_t common = std::max(entry.ranks->first, other.ranks->first);
    if (common > std::min(entry.ranks->last, other.ranks->last)) continue;
    return Invalid(entry.ToString(),
                   "has rank " + std::to_string(common) + ", which is " + other.name + "'s already");
  }
  entries_.push_back(std::move(entry));
  return {};
}

// One machine may stand by for several.
Status AllowList::CheckSuccessors() const {
  for (const AllowEntry& entry : entries_) {
    if (entry.successor.empty() || FindWorker(entry.successor) == nullptr) continue;
    return Invalid(entry.ToString(),
                   "has a successor that is in the list for itself: it would hold two ranks");
  }
  return {};
}

bool AllowList::Allows(std::string_view role, std::string_view name) const {
  return empty() || std::ranges::any_of(entries_, [&](const AllowEntry& entry) {
           return (entry.role == role && entry.name == name) || (role == kWorker && entry.successor == name);
         });
}

const AllowEntry* AllowList::FindWorker(std::string_view name) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const AllowEntry& entry) { return entry.role == kWorker && entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const AllowEntry* AllowList::FindRank(uint32_t rank) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const AllowEntry& entry) { return entry.ranks && entry.ranks->Contains(rank); });
  return found == entries_.end() ? nullptr : &*found;
}

Status AllowList::CheckWorldSize(uint32_t world_size) const {
  for (const AllowEntry& entry : entries_) {
    if (!entry.ranks || entry.ranks->last < world_size) continue;
    return Invalid(entry.ToString(), "has rank " + std::to_string(entry.ranks->last) +
                                         ", and the job's ranks are 0 to " + std::to_string(world_size - 1));
  }
  return {};
}

std::string AllowList::ToString() const {
  std::string text;
  for (const AllowEntry& entry : entries_) text += (text.empty() ? "" : ", ") + entry.ToString();
  return text;
}

}  // namespace longhaul
