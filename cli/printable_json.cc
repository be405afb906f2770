#include "cli/printable_json.h"

#include <nlohmann/json.hpp>

namespace longhaul::cli {

using nlohmann::json;

Result<std::string> PrintableJson(std::string_view text) {
  bool too_deep = false;
  // The parser keeps its own stack, dump() recurses and indents by the depth: what is too deep is left out on
  // the way in, and then nothing is printed.
  const auto shallow = [&too_deep](int depth, json::parse_event_t event, const json&) {
    const bool begins =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    const bool keep = !begins || depth < kMaxJsonDepth;
    too_deep |= !keep;
    return keep;
  };
  const json value = json::parse(text, shallow, /*allow_exceptions=*/false);
  if (too_deep) {
    return Status(StatusCode::kProtocolViolation,
                  "the answer is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  }
  if (!value.is_object()) return Status(StatusCode::kProtocolViolation, "the answer is no JSON object");
  return value.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace longhaul::cli
