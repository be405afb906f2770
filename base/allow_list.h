// Which certificates may connect, and which ranks of the job are whose: `--allow
// fra:0+fra2,nyc:1-3,tool/ops`.
//
//   entry = [ROLE/]NAME[:RANKS[xWORKERS]][+SUCCESSOR]
//
//   ROLE        worker (also without one) or tool; a tool has no ranks, no workers and no successor
//   RANKS       one rank or a range of them: 3, 1-3; without: one rank, which is no other entry's
//   WORKERS     for how many workers each of the ranks stands, as a site's engine does: 1x8
//   SUCCESSOR   the worker that may take a rank of NAME's when NAME is lost, kicked or has left
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"

namespace longhaul {

// Names of jobs, machines and sites in certificates: 1..64 of A-Z a-z 0-9 . _ -
bool IsKeyName(std::string_view text);

// Ranks first..last, both included.
struct RankRange {
  // Ranks are below this, whatever the job (ServerOptions::workers).
  static constexpr uint32_t kRanks = 1024;

  uint32_t first = 0;
  uint32_t last = 0;

  // "3" or "1-3"; nullopt for anything else, a range that ends before it begins, ranks of kRanks and above.
  static std::optional<RankRange> Parse(std::string_view text);
  bool Contains(uint32_t rank) const { return rank >= first && rank <= last; }
  std::string ToString() const;
  bool operator==(const RankRange&) const = default;
};

struct AllowEntry {
  // Of the job's workers, all ranks together.
  static constexpr uint32_t kMaxWorkers = 1u << 20;

  std::string role = "worker";          // worker | tool
  std::string name = {};                // of the certificate
  std::optional<RankRange> ranks = {};  // none: any one rank that is not set aside
  uint32_t workers = 1;                 // each rank stands for so many
  std::string successor = {};           // a worker's name; empty: none

  std::string ToString() const;
  bool operator==(const AllowEntry&) const = default;
};

// Of a valid list: no name twice in one role, no rank of two entries, no successor that has an entry itself.
class AllowList {
 public:
  // One text an entry; blanks around it do not count. No texts: every certificate of the job is allowed.
  // kInvalidArgument begins with 'allow' and names the entry and the mistake.
  static Result<AllowList> Parse(const std::vector<std::string>& texts);

  // Every certificate of the job is allowed, and a worker's one rank is any that is free.
  bool empty() const { return entries_.empty(); }
  const std::vector<AllowEntry>& entries() const { return entries_; }
  // A certificate of that role and name has an entry, or is a successor.
  bool Allows(std::string_view role, std::string_view name) const;
  // The worker's own entry; null: it has none.
  const AllowEntry* FindWorker(std::string_view name) const;
  // The entry that sets the rank aside; null: none does.
  const AllowEntry* FindRank(uint32_t rank) const;
  // kInvalidArgument: an entry has ranks that a job of so many does not have.
  Status CheckWorldSize(uint32_t world_size) const;
  // "worker/fra:0+fra2, tool/ops".
  std::string ToString() const;
  bool operator==(const AllowList&) const = default;

 private:
  Status Add(AllowEntry entry);
  Status CheckSuccessors() const;

  std::vector<AllowEntry> entries_;
};

}  // namespace longhaul
