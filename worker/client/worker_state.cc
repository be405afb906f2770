#include "worker/client/worker_state.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/crc32c.h"

namespace longhaul::internal {
namespace {

constexpr size_t kBootIdBytes = 36;

ByteSpan BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void AppendU64(uint64_t value, std::string* content) {
  uint8_t bytes[8];
  ByteWriter(bytes).U64(value);
  content->append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

Status WriteSealed(Files& files, const std::string& path, std::string content) {
  AppendU64(Crc32c(BytesOf(content)), &content);
  return ReplaceFile(files, path, BytesOf(content));
}

}  // namespace

WorkerState::WorkerState(Options options) : options_(std::move(options)) {
  std::string boot(kBootIdBytes, ' ');
  const auto file = options_.files->Open(options_.boot_id);
  if (file.ok() && (*file)->Read({reinterpret_cast<uint8_t*>(boot.data()), boot.size()}).ok()) boot_ = boot;
  auto blob = Load(".state");
  if (!blob) blob = Load(".state.old");
  blob_ = std::move(blob).value_or("");
  try {
    if (const auto residuals = Load(".residuals")) TakeResiduals(BytesOf(*residuals));
  } catch (const std::bad_alloc&) {
    loaded_.clear();
    options_.warn("state_dir: no memory for what is owed: not used");
  }
}

std::string WorkerState::Path(const char* end) const {
  return options_.directory + "/rank-" + std::to_string(options_.rank) + end;
}

std::optional<std::string> WorkerState::Load(const char* end) const {
  const auto unusable = [&](const std::string& why) {
    options_.warn("state_dir: " + why + ": not used");
    return std::nullopt;
  };
  try {
    const auto file = options_.files->Open(Path(end));
    if (file.status().code() == StatusCode::kNotFound) return std::nullopt;
    if (!file.ok()) return unusable(file.status().message());
    std::string content((*file)->size(), '\0');
    const Status read = (*file)->Read({reinterpret_cast<uint8_t*>(content.data()), content.size()});
    if (!read.ok()) return unusable(read.message());
    const size_t size = content.size() - std::min<size_t>(content.size(), 8);
    ByteReader crc(BytesOf(content).subspan(size));
    if (crc.U64() != Crc32c(BytesOf(content).first(size)) || !crc.ok())
      return unusable(Path(end) + " is damaged");
    content.resize(size);
    return content;
  } catch (const std::exception&) {  // or more bytes than a string can have
    return unusable("no memory for " + Path(end));
  }
}

void WorkerState::TakeResiduals(ByteSpan content) {
  ByteReader reader(content);
  const uint64_t job = reader.U64();
  const ByteSpan boot = reader.Bytes(kBootIdBytes);
  if (job != options_.job() || boot_ != std::string(boot.begin(), boot.end())) {
    return options_.warn("state_dir: " + Path(".residuals") +
                         " is of another job, or from before this machine's " +
                         "start, and may have been repaid: not used");
  }
  while (reader.ok() && reader.remaining() > 0) {
    const uint64_t count = reader.U64(), first = reader.U64(), size = reader.U64();
    const ByteSpan name = reader.Bytes(reader.U64());
    if (size > kRun || first > count || size > count - first) return;
    const ByteSpan values = reader.Bytes(size * sizeof(float));
    if (!reader.ok()) return;
    loaded_.push_back({{name.begin(), name.end()}, count, first, std::vector<float>(size)});
    std::ranges::copy(values, reinterpret_cast<uint8_t*>(loaded_.back().values.data()));
  }
}

void WorkerState::Append(const Run& run, std::string* content) {
  if (std::ranges::none_of(run.values, [](float v) { return v != 0; })) return;
  for (const uint64_t n : {run.count, run.first, run.values.size(), run.name.size()}) AppendU64(n, content);
  content->append(run.name);
  content->append(reinterpret_cast<const char*>(run.values.data()), run.values.size() * sizeof(float));
}

void WorkerState::OnDeclared(const Declared& tensor) {
  std::unique_lock lock(mutex_);
  if (std::ranges::any_of(declared_, [&](const Declared& d) { return d.name == tensor.name; })) return;
  declared_.push_back(tensor);
  bool fits = true;
  std::erase_if(loaded_, [&](Run& run) {
    if (run.name != tensor.name) return false;
    fits = run.count == tensor.count;
    if (fits) tensor.owe(run.first, std::move(run.values));
    return true;
  });
  lock.unlock();  // the log may push
  if (!fits)
    options_.warn("state_dir: tensor " + tensor.name + " has another length now: its residual is not used");
}

void WorkerState::BeginPush() {
  std::unique_lock lock(mutex_);
  ++pending_;
  ++pushes_;
  if (!std::exchange(kept_, false)) return;
  const Status removed = options_.files->Remove(Path(".residuals"));
  if (removed.ok() || removed.code() == StatusCode::kNotFound) return;
  kept_ = true;  // with the next push again
  lock.unlock();
  options_.warn("state_dir: " + removed.message() + ": a worker that finds it at its start repays it twice");
}

Status WorkerState::Save(ByteSpan blob) {
  if (blob.size() > kMostBlobBytes) return {StatusCode::kResourceExhausted, "a state has at most 2^30 bytes"};
  std::unique_lock lock(mutex_);
  const uint64_t pushes = pushes_;
  const std::vector<Declared> declared = declared_;
  lock.unlock();  // the client's thread may be in a callback that pushes
  std::string residuals;
  const uint64_t job = options_.job();
  AppendU64(job, &residuals);
  residuals += boot_;
  for (const Declared& tensor : declared) {
    for (uint64_t first = 0; first < tensor.count;) {
      const auto values = tensor.owed(first, kRun);
      if (!values.ok()) return values.status();
      if (values->empty()) break;
      Append({tensor.name, tensor.count, first, *values}, &residuals);
      first += values->size();
    }
  }
  lock.lock();
  if (pending_ > 0 || pushes != pushes_ || declared.size() != declared_.size())
    return {StatusCode::kFailedPrecondition,
            "a push is pending, or has begun, or a tensor was declared: the state is saved between pushes"};
  for (const Run& run : loaded_) Append(run, &residuals);
  Files& files = *options_.files;
  const Status old = files.Rename(Path(".state"), Path(".state.old"));
  if (!old.ok() && old.code() != StatusCode::kNotFound) return old;
  const Status written = WriteSealed(files, Path(".state"), {blob.begin(), blob.end()});
  if (!written.ok() || job == 0 || boot_.empty()) return written;
  kept_ = true;
  return WriteSealed(files, Path(".residuals"), std::move(residuals));
}

}  // namespace longhaul::internal
