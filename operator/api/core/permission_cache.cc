#include "operator/api/core/permission_cache.h"

#include <algorithm>

namespace longhaul::kubernetes {
namespace {

// Two questions have one text only when they are the same: each part says its length. Groups are a set.
std::string TextOf(const AccessQuestion& q) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  for (const std::string* part : {&q.user, &q.verb, &q.group, &q.resource, &q.name_space, &q.name})
    add(*part);
  std::vector<std::string> groups = q.groups;
  std::ranges::sort(groups);
  for (const std::string& group : groups) add(group);
  return text;
}

}  // namespace

std::optional<bool> PermissionCache::Find(const AccessQuestion& question, Instant now) {
  const auto found = entries_.find(TextOf(question));
  if (found == entries_.end()) {
    ++counters_.misses;
    return std::nullopt;
  }
  if (now >= found->second.until) {
    ++counters_.misses;
    ++counters_.expired;
    uses_.erase(found->second.use);
    entries_.erase(found);
    return std::nullopt;
  }
  ++counters_.hits;
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return found->second.allowed;
}

void PermissionCache::Put(const AccessQuestion& question, bool allowed, Instant now) {
  std::string text = TextOf(question);
  const auto [entry, added] = entries_.try_emplace(text);
  if (added) {
    entry->second.use = uses_.insert(uses_.begin(), std::move(text));
  } else {
    uses_.splice(uses_.begin(), uses_, entry->second.use);
  }
  entry->second.allowed = allowed;
  entry->second.until = now + (allowed ? options_.allow : options_.deny);
  while (entries_.size() > std::max<size_t>(1, options_.max_entries)) {
    ++counters_.evicted;
    entries_.erase(uses_.back());
    uses_.pop_back();
  }
}

}  // namespace longhaul::kubernetes
