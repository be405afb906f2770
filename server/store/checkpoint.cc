#include "server/store/checkpoint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <new>
#include <span>

#include "server/store/hashed_file.h"
#include "server/store/safetensors.h"

namespace longhaul::server::store {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they are in memory");

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kPart = ".part";
constexpr size_t kDigits = 12;

using Values = std::shared_ptr<ZeroedArray<float>>;
using Tensors = std::vector<std::pair<SafetensorsHeader::Entry, std::shared_ptr<const ZeroedArray<float>>>>;

std::string NameOf(uint64_t generation) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "checkpoint-%0*" PRIu64, static_cast<int>(kDigits), generation);
  return name.data();
}

std::optional<uint64_t> GenerationOf(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kDigits) return std::nullopt;
  uint64_t generation = 0;
  for (const char digit : name.substr(kPrefix.size())) {
    if (digit < '0' || digit > '9') return std::nullopt;
    generation = generation * 10 + static_cast<uint64_t>(digit - '0');
  }
  return generation;
}

std::string StateKey(const std::string& state, const std::string& tensor) { return state + "." + tensor; }

Status In(const std::string& path, const Status& why) {
  const bool named = why.message().find(path) != std::string::npos;
  return named ? why : Status(why.code(), path + ": " + why.message());
}

// A directory without directories, or nothing.
void RemoveAll(Files& files, const std::string& path) {
  if (const auto names = files.List(path); names.ok()) {
    for (const std::string& name : *names) (void)files.Remove(path + "/" + name);
  }
  (void)files.Remove(path);
}

// --- Writing ---

Tensors ParametersOf(const JobImage& image) {
  Tensors out;
  for (const TensorImage& tensor : image.tensors) out.push_back({{tensor.name, tensor.count}, tensor.values});
  return out;
}

Tensors OptimizerOf(const JobImage& image) {
  Tensors out;
  for (const TensorImage& tensor : image.tensors) {
    for (const auto& state : tensor.state)
      out.push_back({{StateKey(state.name, tensor.name), tensor.count}, state.values});
  }
  return out;
}

Result<Manifest::File> WriteTensors(Files& files, const std::string& path, const Tensors& tensors,
                                    std::map<std::string, std::string> metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = std::move(metadata)};
  for (const auto& [entry, values] : tensors) header.tensors.push_back(entry);
  const auto head = EncodeHeader(header);
  if (!head.ok()) return head.status();
  auto file = files.Create(path);
  if (!file.ok()) return file.status();
  HashedWriter writer(*std::move(file));
  if (Status written = writer.Write(BytesOf(*head)); !written.ok()) return written;
  for (const auto& [entry, values] : tensors) {
    if (Status written = writer.Write(BytesOf(*values)); !written.ok()) return written;
  }
  if (Status synced = writer.Sync(); !synced.ok()) return synced;
  return Manifest::File{writer.bytes(), writer.Finish()};
}

// As the reference implementation's users expect it of a PyTorch model.
std::map<std::string, std::string> MetadataOf(const Manifest& manifest) {
  return {{"format", "pt"},
          {"longhaul.job", manifest.job},
          {"longhaul.rounds", std::to_string(manifest.rounds)},
          {"longhaul.generation", std::to_string(manifest.generation)}};
}

// --- Reading ---

// Where a tensor's values go; an empty span: nowhere, they are only looked at.
using Place = std::function<Result<std::span<float>>(size_t index)>;

Status ReadTensors(Files& files, const std::string& path, const Manifest::File& file,
                   const std::vector<SafetensorsHeader::Entry>& tensors, const Place& place) {
  auto opened = files.Open(path);
  if (!opened.ok()) return opened.status();
  HashedReader reader(*std::move(opened));
  if (reader.size() != file.bytes) {
    return {StatusCode::kDataLoss, path + " has " + std::to_string(reader.size()) +
                                       " bytes, and its manifest says " + std::to_string(file.bytes)};
  }
  if (reader.size() < SafetensorsHeader::kLengthBytes)
    return {StatusCode::kDataLoss, path + " has no header"};
  std::string head(SafetensorsHeader::kLengthBytes, '\0');
  const auto read = [&reader](std::string& text) {
    return reader.Read({reinterpret_cast<uint8_t*>(text.data()), text.size()});
  };
  if (Status got = read(head); !got.ok()) return In(path, got);
  const auto length = DecodeHeaderLength(head, reader.size());
  if (!length.ok()) return In(path, length.status());
  std::string json(*length, '\0');
  if (Status got = read(json); !got.ok()) return In(path, got);
  const auto header = DecodeHeader(json, reader.size() - SafetensorsHeader::kLengthBytes - *length);
  if (!header.ok()) return In(path, header.status());
  if (header->tensors != tensors) {
    return {StatusCode::kDataLoss, path + " has other tensors than its manifest says"};
  }
  for (size_t i = 0; place && i < tensors.size(); ++i) {
    const auto values = place(i);
    if (!values.ok()) return values.status();
    if (Status got = reader.Read({reinterpret_cast<uint8_t*>(values->data()), values->size_bytes()});
        !got.ok())
      return In(path, got);
  }
  if (Status rest = reader.Skip(); !rest.ok()) return In(path, rest);
  if (reader.Finish() == file.sha256) return {};
  return {StatusCode::kDataLoss, path + " is damaged: its SHA-256 is not the one in its manifest"};
}

struct Entries {
  std::vector<SafetensorsHeader::Entry> parameters;
  std::vector<SafetensorsHeader::Entry> optimizer;
};

Entries EntriesOf(const Manifest& manifest) {
  Entries entries;
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    entries.parameters.push_back({tensor.name, tensor.count});
    for (const std::string& state : tensor.state)
      entries.optimizer.push_back({StateKey(state, tensor.name), tensor.count});
  }
  return entries;
}

// The file's size is known to fit the counts when this is called.
Result<std::span<float>> Allocate(uint64_t count, std::vector<Values>* all) {
  try {
    all->push_back(std::make_shared<ZeroedArray<float>>(count));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted,
                  "no memory for " + std::to_string(count) + " values of a checkpoint");
  }
  return all->back()->span();
}

}  // namespace

Result<std::vector<CheckpointPath>> ListCheckpoints(Files& files, const std::string& directory) {
  const auto names = files.List(directory);
  if (!names.ok()) return names.status();
  std::vector<CheckpointPath> found;
  for (const std::string& name : *names) {
    if (const auto generation = GenerationOf(name)) found.push_back({*generation, directory + "/" + name});
  }
  std::ranges::sort(found, std::ranges::greater(), &CheckpointPath::generation);
  return found;
}

Result<Manifest> ReadManifest(Files& files, const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + Manifest::kFileName;
  auto file = files.Open(path);
  if (!file.ok()) return file.status();
  if ((*file)->size() > Manifest::kMaxBytes)
    return Status(StatusCode::kDataLoss, path + " is larger than any manifest");
  std::string text((*file)->size(), '\0');
  if (Status got = (*file)->Read({reinterpret_cast<uint8_t*>(text.data()), text.size()}); !got.ok())
    return In(path, got);
  auto manifest = DecodeManifest(text);
  if (!manifest.ok()) return In(path, manifest.status());
  for (const Manifest::Tensor& tensor : manifest->tensors) {
    if (!codec::MayKeep(tensor.optimizer, tensor.state)) {
      return Status(StatusCode::kDataLoss, path + ": tensor \"" + tensor.name +
                                               "\" has no state of its optimizer \"" + tensor.optimizer +
                                               "\"");
    }
  }
  return manifest;
}

Result<Manifest> VerifyCheckpoint(Files& files, const std::string& path) {
  auto manifest = ReadManifest(files, path);
  if (!manifest.ok()) return manifest;
  const Entries entries = EntriesOf(*manifest);
  const Status parameters =
      ReadTensors(files, path + "/" + Manifest::kParameters, manifest->parameters, entries.parameters, {});
  if (!parameters.ok()) return parameters;
  const Status optimizer =
      ReadTensors(files, path + "/" + Manifest::kOptimizer, manifest->optimizer, entries.optimizer, {});
  if (!optimizer.ok()) return optimizer;
  return manifest;
}

Result<LoadedCheckpoint> LoadCheckpoint(Files& files, const std::string& path) {
  auto manifest = ReadManifest(files, path);
  if (!manifest.ok()) return manifest.status();
  const Entries entries = EntriesOf(*manifest);
  std::vector<Values> parameters, state;
  const auto into = [](const auto& wanted, std::vector<Values>* all) {
    return [&wanted, all](size_t i) { return Allocate(wanted[i].count, all); };
  };
  const Status read = ReadTensors(files, path + "/" + Manifest::kParameters, manifest->parameters,
                                  entries.parameters, into(entries.parameters, &parameters));
  if (!read.ok()) return read;
  const Status read_state = ReadTensors(files, path + "/" + Manifest::kOptimizer, manifest->optimizer,
                                        entries.optimizer, into(entries.optimizer, &state));
  if (!read_state.ok()) return read_state;
  LoadedCheckpoint loaded{.path = path, .manifest = *std::move(manifest), .image = {}};
  loaded.image.rounds = loaded.manifest.rounds;
  size_t next_state = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Manifest::Tensor& tensor = loaded.manifest.tensors[i];
    TensorImage& image = loaded.image.tensors.emplace_back();
    image = {.name = tensor.name,
             .count = tensor.count,
             .optimizer = tensor.optimizer,
             .rounds = tensor.rounds,
             .shift_epoch = tensor.shift_epoch,
             .values = std::move(parameters[i])};
    for (const std::string& name : tensor.state)
      image.state.push_back({name, std::move(state[next_state++])});
  }
  return loaded;
}

Result<NewestCheckpoint> LoadNewestCheckpoint(Files& files, const std::string& directory) {
  NewestCheckpoint newest;
  const auto found = ListCheckpoints(files, directory);
  if (found.status().code() == StatusCode::kNotFound) return newest;
  if (!found.ok()) return found.status();
  for (const CheckpointPath& checkpoint : *found) {
    auto loaded = LoadCheckpoint(files, checkpoint.path);
    if (loaded.ok()) {
      newest.loaded = *std::move(loaded);
      return newest;
    }
    // It is good, for all we know; an older one would take as much.
    if (loaded.status().code() == StatusCode::kResourceExhausted) return loaded.status();
    newest.refused.emplace_back(checkpoint.path, loaded.status());
  }
  return newest;
}

Status ExportCheckpoint(Files& files, const std::string& path, const std::string& out, bool optimizer) {
  const auto loaded = LoadCheckpoint(files, path);
  if (!loaded.ok()) return loaded.status();
  Tensors tensors = ParametersOf(loaded->image);
  if (optimizer) std::ranges::copy(OptimizerOf(loaded->image), std::back_inserter(tensors));
  const auto written = WriteTensors(files, out, tensors, MetadataOf(loaded->manifest));
  if (!written.ok() && written.status().code() != StatusCode::kAlreadyExists) (void)files.Remove(out);
  return written.status();
}

Result<CheckpointWriter> CheckpointWriter::Open(Files* files, const std::string& directory, size_t keep) {
  if (keep < 1) return Status(StatusCode::kInvalidArgument, "at least one checkpoint is to be kept");
  const Status made = files->MakeDirectory(directory);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  auto lock = files->Lock(directory + "/lock");
  if (!lock.ok()) {
    if (lock.status().code() != StatusCode::kUnavailable) return lock.status();
    return Status(StatusCode::kUnavailable,
                  "another server writes checkpoints there: " + lock.status().message());
  }
  const auto names = files->List(directory);
  if (!names.ok()) return names.status();
  uint64_t next = 1;
  for (const std::string& name : *names) {
    if (const auto generation = GenerationOf(name)) next = std::max(next, *generation + 1);
    const bool part = name.ends_with(kPart);
    if (part && GenerationOf(std::string_view(name).substr(0, name.size() - kPart.size())))
      RemoveAll(*files, directory + "/" + name);
  }
  // Found out now, not after hours.
  const std::string part = directory + "/" + NameOf(next) + std::string(kPart);
  if (Status can = files->MakeDirectory(part); !can.ok()) return can;
  if (Status can = files->Remove(part); !can.ok()) return can;
  return CheckpointWriter(files, directory, keep, *std::move(lock), next);
}

Result<Manifest> CheckpointWriter::Write(const JobImage& image, const Description& about) {
  Manifest manifest{.generation = next_,
                    .job = about.job,
                    .settings = about.settings,
                    .rounds = image.rounds,
                    .written = about.written,
                    .parameters = {},
                    .optimizer = {},
                    .tensors = {}};
  for (const TensorImage& tensor : image.tensors) {
    std::vector<std::string> state;
    for (const auto& array : tensor.state) state.push_back(array.name);
    manifest.tensors.push_back({.name = tensor.name,
                                .count = tensor.count,
                                .optimizer = tensor.optimizer,
                                .state = std::move(state),
                                .rounds = tensor.rounds,
                                .shift_epoch = tensor.shift_epoch});
  }
  const std::string name = directory_ + "/" + NameOf(next_);
  const std::string part = name + std::string(kPart);
  RemoveAll(*files_, part);
  Status done = WriteFiles(part, image, &manifest);
  if (done.ok()) done = files_->Rename(part, name);
  if (!done.ok()) {
    RemoveAll(*files_, part);  // its space is wanted
    return done;
  }
  ++next_;  // it has its name, whether that is on the disk or not
  if (Status synced = files_->SyncDirectory(directory_); !synced.ok()) return synced;
  RemoveOld();
  return manifest;
}

Status CheckpointWriter::WriteFiles(const std::string& part, const JobImage& image, Manifest* manifest) {
  if (Status made = files_->MakeDirectory(part); !made.ok()) return made;
  const auto metadata = MetadataOf(*manifest);
  const auto parameters =
      WriteTensors(*files_, part + "/" + Manifest::kParameters, ParametersOf(image), metadata);
  if (!parameters.ok()) return parameters.status();
  manifest->parameters = *parameters;
  const auto optimizer =
      WriteTensors(*files_, part + "/" + Manifest::kOptimizer, OptimizerOf(image), metadata);
  if (!optimizer.ok()) return optimizer.status();
  manifest->optimizer = *optimizer;
  const auto text = EncodeManifest(*manifest);
  if (!text.ok()) return text.status();
  auto file = files_->Create(part + "/" + Manifest::kFileName);
  if (!file.ok()) return file.status();
  if (Status written = (*file)->Write(BytesOf(*text)); !written.ok()) return written;
  if (Status synced = (*file)->Sync(); !synced.ok()) return synced;
  return files_->SyncDirectory(part);
}

// By way of the name of a part: one that is half removed is never taken for a checkpoint.
void CheckpointWriter::RemoveOld() {
  const auto found = ListCheckpoints(*files_, directory_);
  for (size_t i = keep_; found.ok() && i < found->size(); ++i) {
    const std::string part = (*found)[i].path + std::string(kPart);
    if (files_->Rename((*found)[i].path, part).ok()) RemoveAll(*files_, part);
  }
}

}  // namespace longhaul::server::store
