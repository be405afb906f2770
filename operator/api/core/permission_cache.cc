#include "operator/api/core/permission_cache.h"

#include <openssl/evp.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace longhaul::kube::api {

// Each part says its length, and each list its own. Groups are a set.
std::string KeyOf(const AccessQuestion& q) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  const auto add_all = [&](std::vector<std::string> parts) {
    std::ranges::sort(parts);
    text += std::to_string(parts.size()) + ";";
    for (const std::string& part : parts) add(part);
  };
  for (const std::string* part : {&q.user, &q.uid, &q.verb, &q.group, &q.resource, &q.name_space, &q.name})
    add(*part);
  add_all(q.groups);
  for (const auto& [name, values] : q.extra) {
    add(name);
    add_all(values);
  }
  std::string digest(32, '\0');
  size_t size = digest.size();
  LH_CHECK(EVP_Q_digest(nullptr, "SHA256", nullptr, text.data(), text.size(),
                        reinterpret_cast<unsigned char*>(digest.data()), &size) == 1);
  return digest;
}

std::optional<bool> PermissionCache::Find(const AccessQuestion& question, Instant now) {
  const auto found = entries_.find(KeyOf(question));
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
  std::string key = KeyOf(question);
  const auto [entry, added] = entries_.try_emplace(key);
  if (added) {
    entry->second.use = uses_.insert(uses_.begin(), std::move(key));
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

}  // namespace longhaul::kube::api
