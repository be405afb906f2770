#include "health/http_request.h"

#include <algorithm>

namespace longhaul::health {
namespace {

// Text in some 8-bit encoding, as RFC 9110 §5.5 lets header fields be.
bool IsText(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 ? byte != 0x7f : c == '\r' || c == '\n' || c == '\t';
}

bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }

// The next line, without its end.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

HttpRequest::State HttpRequest::Refuse(int code) {
  refusal_ = code;
  return State::kRefused;
}

HttpRequest::State HttpRequest::Take(std::string_view bytes) {
  // An end may have begun with the bytes before.
  const size_t from = head_.size() - std::min<size_t>(head_.size(), 3);
  const size_t room = kMaxBytes - head_.size();
  head_ += bytes.substr(0, room);
  const size_t crlf = head_.find("\r\n\r\n", from);
  const size_t lf = head_.find("\n\n", from);
  const size_t end = std::min(crlf, lf);
  const std::string_view head = std::string_view(head_).substr(0, end);
  // What can be no request (TLS, for example) is refused at its first byte.
  if (!std::ranges::all_of(head.substr(std::min(from, head.size())), IsText)) return Refuse(400);
  if (end != std::string::npos) return Parse(head);
  return bytes.size() >= room ? Refuse(431) : State::kMore;
}

HttpRequest::State HttpRequest::Parse(std::string_view head) {
  const State state = ParseLine(TakeLine(&head));
  if (state == State::kRefused) return state;
  while (!head.empty()) {
    const std::string_view line = TakeLine(&head);
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos || line.find('\r') != std::string_view::npos)
      return Refuse(400);
  }
  return state;
}

HttpRequest::State HttpRequest::ParseLine(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return Refuse(400);
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (method.empty() || !std::ranges::all_of(method, IsUpper)) return Refuse(400);
  if (!version.starts_with("HTTP/")) return Refuse(400);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return Refuse(505);
  if (method != "GET" && method != "HEAD") return Refuse(405);
  // A CR ends no line of its own (RFC 9112 §2.2).
  if (!target.starts_with('/') || target.find_first_of("\r\t") != std::string_view::npos) return Refuse(400);
  is_head_ = method == "HEAD";
  path_ = target.substr(0, target.find('?'));
  return State::kWhole;
}

}  // namespace longhaul::health
