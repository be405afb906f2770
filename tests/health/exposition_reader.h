// Prometheus' text format 0.0.4, read strictly and apart from the code that writes it:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::health {

struct ReadSample {
  std::map<std::string, std::string> labels;
  double value = 0;
};
struct ReadFamily {
  std::string help;
  std::string type;
  std::vector<ReadSample> samples;
};

class ExpositionReader {
 public:
  // The families by name; `error` says what is wrong first, with its line.
  explicit ExpositionReader(std::string_view text) {
    if (!text.empty() && text.back() != '\n') Fail("the last line has no end", "");
    while (!text.empty() && error.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      Line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  std::map<std::string, ReadFamily> families;
  std::string error;

  // Of the sample with these labels; nothing: there is none.
  std::optional<double> Value(const std::string& name,
                              const std::map<std::string, std::string>& labels = {}) const {
    const auto family = families.find(name);
    if (family == families.end()) return std::nullopt;
    for (const ReadSample& sample : family->second.samples) {
      if (sample.labels == labels) return sample.value;
    }
    return std::nullopt;
  }

 private:
  static bool IsName(std::string_view name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name) {
      const bool fine =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      if (!fine) return false;
    }
    return true;
  }
  // UTF-8 as bytes: continuation bytes follow each lead, and no other.
  static bool IsUtf8(std::string_view text) {
    int more = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (more > 0) {
        if (byte >> 6 != 2) return false;
        --more;
      } else if (byte >= 0x80) {
        more = byte >> 5 == 6 ? 1 : byte >> 4 == 14 ? 2 : byte >> 3 == 30 ? 3 : -1;
        if (more < 0) return false;
      }
    }
    return more == 0;
  }
  void Fail(const std::string& what, std::string_view line) {
    if (error.empty()) error = what + ": " + std::string(line);
  }

  void Line(std::string_view line) {
    if (!IsUtf8(line)) return Fail("not UTF-8", line);
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) return Comment(line);
    if (line.empty() || line.starts_with('#')) return;
    Sample(line);
  }

  void Comment(std::string_view line) {
    const bool help = line[2] == 'H';
    std::string_view rest = line.substr(7);
    const size_t space = rest.find(' ');
    const std::string name(rest.substr(0, space));
    if (!IsName(name) || space == std::string_view::npos) return Fail("no name and text", line);
    if (help == families.contains(name)) return Fail("a family begins with its HELP, and once", line);
    ReadFamily& family = families[name];
    (help ? family.help : family.type) = rest.substr(space + 1);
    if (!help && family.type != "counter" && family.type != "gauge") Fail("unknown type", line);
    last_ = name;
  }

  void Sample(std::string_view line) {
    const size_t end = line.find_first_of("{ ");
    const std::string name(line.substr(0, end));
    if (end == std::string_view::npos || name != last_ || families[name].type.empty())
      return Fail("a sample outside its family", line);
    ReadSample sample;
    std::string_view rest = line.substr(end);
    if (rest.starts_with('{') && !Labels(&rest, &sample)) return Fail("bad labels", line);
    if (!rest.starts_with(' ')) return Fail("no value", line);
    const std::string number(rest.substr(1));
    char* after = nullptr;
    sample.value = std::strtod(number.c_str(), &after);
    if (number.empty() || *after != '\0') return Fail("no number", line);
    std::string key = name;
    for (const auto& [label, value] : sample.labels) key += "\n" + label + "\n" + value;
    if (!keys_.insert(key).second) return Fail("the same sample twice", line);
    families[name].samples.push_back(std::move(sample));
  }

  static bool Labels(std::string_view* rest, ReadSample* sample) {
    rest->remove_prefix(1);
    while (!rest->starts_with('}')) {
      const size_t equals = rest->find("=\"");
      if (equals == std::string_view::npos || !IsName(rest->substr(0, equals))) return false;
      const std::string name(rest->substr(0, equals));
      rest->remove_prefix(equals + 2);
      std::string value;
      for (;;) {
        if (rest->empty()) return false;
        const char c = rest->front();
        rest->remove_prefix(1);
        if (c == '"') break;
        if (c == '\\') {
          if (rest->empty()) return false;
          const char escaped = rest->front();
          rest->remove_prefix(1);
          if (escaped != '\\' && escaped != '"' && escaped != 'n') return false;
          value += escaped == 'n' ? '\n' : escaped;
        } else {
          value += c;
        }
      }
      if (!sample->labels.emplace(name, value).second) return false;
      if (rest->starts_with(',')) rest->remove_prefix(1);
    }
    rest->remove_prefix(1);
    return true;
  }

  std::string last_;
  std::set<std::string> keys_;
};

}  // namespace longhaul::health
