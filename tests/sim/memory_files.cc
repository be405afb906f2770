#include "tests/sim/memory_files.h"

#include <algorithm>
#include <set>
#include <utility>

namespace longhaul::sim {

class MemoryFiles::Out final : public OutFile {
 public:
  Out(MemoryFiles* owner, std::shared_ptr<File> file) : owner_(owner), file_(std::move(file)) {}
  Status Write(ByteSpan bytes) override {
    if (Status works = owner_->Works(); !works.ok()) return works;
    if (owner_->until_stop_ && bytes.size() > *owner_->until_stop_) {
      bytes = bytes.first(static_cast<size_t>(*owner_->until_stop_));
      owner_->stopped_ = true;
    }
    if (owner_->until_stop_) *owner_->until_stop_ -= bytes.size();
    file_->bytes.insert(file_->bytes.end(), bytes.begin(), bytes.end());
    return owner_->Works();
  }
  Status Sync() override {
    Status works = owner_->Works();
    if (works.ok() && !owner_->forgets_) file_->synced = file_->bytes.size();
    return works;
  }

 private:
  MemoryFiles* owner_;
  std::shared_ptr<File> file_;
};

class MemoryFiles::In final : public InFile {
 public:
  In(MemoryFiles* owner, std::shared_ptr<File> file)
      : owner_(owner), file_(std::move(file)), size_(file_->bytes.size()) {}
  uint64_t size() const override { return size_; }
  Status Read(MutableByteSpan bytes) override {
    if (bytes.size() > size_ - at_) return {StatusCode::kDataLoss, "the file ends before"};
    std::copy_n(file_->bytes.begin() + static_cast<ptrdiff_t>(at_), bytes.size(), bytes.begin());
    at_ += bytes.size();
    return {};
  }
  Status Sync() override {
    Status works = owner_->Works();
    if (works.ok() && !owner_->forgets_) file_->synced = file_->bytes.size();
    return works;
  }

 private:
  MemoryFiles* owner_;
  std::shared_ptr<File> file_;
  size_t size_;
  size_t at_ = 0;
};

Status MemoryFiles::Works() const {
  return stopped_ ? Status(StatusCode::kInternal, "the machine has stopped") : Status();
}

void MemoryFiles::Restart(Random& chance, bool process_only) {
  stopped_ = false;
  until_stop_.reset();
  if (process_only) return;
  std::set<std::string> changed;
  for (const auto& [path, file] : names_) changed.insert(path);
  for (const auto& [path, file] : durable_) changed.insert(path);
  for (const std::string& path : changed) {
    const auto now = names_.find(path), before = durable_.find(path);
    const bool same =
        now != names_.end() && before != durable_.end() && now->second.get() == before->second.get();
    if (same || chance.Chance(0.5)) continue;
    if (before == durable_.end()) {
      names_.erase(path);
    } else {
      names_[path] = before->second;
    }
  }
  for (const auto& [path, file] : names_) {
    file->bytes.resize(file->synced +
                       static_cast<size_t>(chance.Below(file->bytes.size() - file->synced + 1)));
    file->synced = file->bytes.size();
  }
  durable_ = names_;
}

Result<std::unique_ptr<OutFile>> MemoryFiles::Create(const std::string& path) {
  if (Status works = Works(); !works.ok()) return works;
  const auto [at, made] = names_.emplace(path, std::make_shared<File>());
  if (!made) return Status(StatusCode::kAlreadyExists, path + " exists");
  return std::unique_ptr<OutFile>(std::make_unique<Out>(this, at->second));
}

Result<std::unique_ptr<InFile>> MemoryFiles::Open(const std::string& path) {
  const auto found = names_.find(path);
  if (found == names_.end()) return Status(StatusCode::kNotFound, "no " + path);
  return std::unique_ptr<InFile>(std::make_unique<In>(this, found->second));
}

Status MemoryFiles::Rename(const std::string& from, const std::string& to) {
  if (Status works = Works(); !works.ok()) return works;
  auto moved = names_.extract(from);
  if (moved.empty()) return {StatusCode::kNotFound, "no " + from};
  names_[to] = std::move(moved.mapped());
  return {};
}

Status MemoryFiles::SyncDirectory(const std::string&) {
  Status works = Works();
  if (works.ok() && !forgets_) durable_ = names_;
  return works;
}

Status MemoryFiles::Remove(const std::string& path) {
  if (Status works = Works(); !works.ok()) return works;
  return names_.erase(path) > 0 ? Status() : Status(StatusCode::kNotFound, "no " + path);
}

Result<std::vector<std::string>> MemoryFiles::List(const std::string&) {
  std::vector<std::string> names;
  for (const auto& [path, file] : names_) names.push_back(path.substr(path.rfind('/') + 1));
  return names;
}

}  // namespace longhaul::sim
