// The system's files, of which any call fails, or after which none is made any more.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/disk/files.h"

namespace longhaul::server::store {

class FaultyFiles final : public Files {
 public:
  enum class Fault { kNone, kFails, kDies };

  // The nth call from now on (0 is the next) fails with `why`; kDies: and so do all after it, as when the
  // machine has stopped. A write that fails has written half of its bytes.
  void FailAt(size_t n, Fault fault,
              Status why = {StatusCode::kResourceExhausted, "No space left on device"}) {
    calls_ = 0, at_ = n, fault_ = fault, why_ = std::move(why);
  }
  bool failed() const { return fault_ != Fault::kNone && calls_ > at_; }
  size_t calls() const { return calls_; }
  std::vector<std::string> log;  // of what was done, by name of the call and last part of the path

  Result<std::unique_ptr<OutFile>> Create(const std::string& path) override {
    if (Status now = Next("create", path); !now.ok()) return now;
    auto file = SystemFiles().Create(path);
    if (!file.ok()) return file;
    return std::unique_ptr<OutFile>(new Out(this, path, *std::move(file)));
  }
  Result<std::unique_ptr<InFile>> Open(const std::string& path) override {
    auto file = SystemFiles().Open(path);
    if (!file.ok()) return file;
    return std::unique_ptr<InFile>(new In(this, path, *std::move(file)));
  }
  Status MakeDirectory(const std::string& path) override {
    Status now = Next("mkdir", path);
    return now.ok() ? SystemFiles().MakeDirectory(path) : now;
  }
  Status Rename(const std::string& from, const std::string& to) override {
    Status now = Next("rename", to);
    return now.ok() ? SystemFiles().Rename(from, to) : now;
  }
  Status SyncDirectory(const std::string& path) override {
    Status now = Next("syncdir", path);
    return now.ok() ? SystemFiles().SyncDirectory(path) : now;
  }
  Status Remove(const std::string& path) override {
    Status now = Next("remove", path);
    return now.ok() ? SystemFiles().Remove(path) : now;
  }
  Result<std::vector<std::string>> List(const std::string& path) override { return SystemFiles().List(path); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return SystemFiles().Lock(path);
  }

 private:
  struct Out final : OutFile {
    Out(FaultyFiles* o, std::string p, std::unique_ptr<OutFile> f)
        : owner(o), path(std::move(p)), file(std::move(f)) {}
    Status Write(ByteSpan bytes) override {
      Status now = owner->Next("write", path);
      if (now.ok()) return file->Write(bytes);
      (void)file->Write(bytes.first(bytes.size() / 2));
      return now;
    }
    Status Sync() override {
      Status now = owner->Next("sync", path);
      return now.ok() ? file->Sync() : now;
    }
    FaultyFiles* owner;
    std::string path;
    std::unique_ptr<OutFile> file;
  };

  struct In final : InFile {
    In(FaultyFiles* o, std::string p, std::unique_ptr<InFile> f)
        : owner(o), path(std::move(p)), file(std::move(f)) {}
    uint64_t size() const override { return file->size(); }
    Status Read(MutableByteSpan bytes) override { return file->Read(bytes); }
    Status Sync() override {
      Status now = owner->Next("sync", path);
      return now.ok() ? file->Sync() : now;
    }
    FaultyFiles* owner;
    std::string path;
    std::unique_ptr<InFile> file;
  };

  Status Next(const std::string& what, const std::string& path) {
    const size_t call = calls_++;
    const bool fails = fault_ == Fault::kDies ? call >= at_ : fault_ == Fault::kFails && call == at_;
    if (fails) return {why_.code(), "cannot " + what + " " + path + ": " + why_.message()};
    log.push_back(what + " " + path.substr(path.rfind('/') + 1));
    return {};
  }

  size_t calls_ = 0;
  size_t at_ = 0;
  Fault fault_ = Fault::kNone;
  Status why_;
};

}  // namespace longhaul::server::store
