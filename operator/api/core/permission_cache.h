// What the API server has said about users' permissions, for a while: a SubjectAccessReview costs a round
// trip and some of the server's budget.
//
// Not thread-safe. Time is an argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "base/instant.h"
#include "operator/api/core/api_request.h"

namespace longhaul::kube::api {

struct PermissionCacheOptions {
  // As kube-apiserver's webhook authoriser caches (--authorization-webhook-cache-authorized-ttl 5m,
  // -unauthorized-ttl 30s): a right that was taken away holds on for 5 minutes at most, one that was given is
  // seen after half a minute.
  Duration allow = std::chrono::seconds(300);
  Duration deny = std::chrono::seconds(30);
  size_t max_entries = 4096;  // some 250 bytes each, however many groups a user has: 1 MB
};

struct PermissionCacheCounters {
  uint64_t hits = 0;
  uint64_t misses = 0;  // expired ones too
  uint64_t expired = 0;
  uint64_t evicted = 0;  // the ones asked for least recently, beyond max_entries
};

// Two questions have one key only when they are the same: a digest (SHA-256), since groups may be many.
std::string KeyOf(const AccessQuestion& question);

class PermissionCache {
 public:
  explicit PermissionCache(const PermissionCacheOptions& options = {}) : options_(options) {}

  // nullopt: ask the API server, then Put.
  std::optional<bool> Find(const AccessQuestion& question, Instant now);
  // Only an answer of the server; a failure is nothing to remember.
  void Put(const AccessQuestion& question, bool allowed, Instant now);

  size_t size() const { return entries_.size(); }
  const PermissionCacheCounters& counters() const { return counters_; }

 private:
  struct Entry {
    bool allowed = false;
    Instant until;
    std::list<std::string>::iterator use;
  };

  const PermissionCacheOptions options_;
  std::map<std::string, Entry> entries_;
  std::list<std::string> uses_;  // the latest first
  PermissionCacheCounters counters_;
};

}  // namespace longhaul::kube::api
