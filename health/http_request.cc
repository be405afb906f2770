#include "health/http_request.h"

#include <algorithm>
#include <cctype>
#include <charconv>

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

// Names of fields, and the words that stand in them here, do not depend on case.
bool IsSame(std::string_view a, std::string_view lower) {
  return std::ranges::equal(a, lower, [](unsigned char x, unsigned char y) { return std::tolower(x) == y; });
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

const char* ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "HTTP Version Not Supported";
  }
}

HttpRequest::State HttpRequest::Refuse(int code) {
  refusal_ = code;
  return State::kRefused;
}

HttpRequest::State HttpRequest::Take(std::string_view bytes) {
  // An end may have begun with the bytes before.
  const size_t before = head_.size();
  const size_t from = head_.size() - std::min<size_t>(head_.size(), 3);
  const size_t room = kMaxBytes - head_.size();
  head_ += bytes.substr(0, room);
  const size_t crlf = head_.find("\r\n\r\n", from);
  const size_t lf = head_.find("\n\n", from);
  const size_t end = std::min(crlf, lf);
  const std::string_view head = std::string_view(head_).substr(0, end);
  // What can be no request (TLS, for example) is refused at its first byte.
  if (!std::ranges::all_of(head.substr(std::min(from, head.size())), IsText)) return Refuse(400);
  if (end != std::string::npos) {
    taken_ = end + (end == crlf ? 4 : 2) - before;
    return Parse(head);
  }
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
    if (ParseField(line.substr(0, colon), Trimmed(line.substr(colon + 1))) == State::kRefused)
      return State::kRefused;
  }
  if (takes_ == Takes::kPosts && !has_length_) return Refuse(411);
  return state;
}

// What a body is framed by. Two lengths, or a length and chunks, are what requests are smuggled by (RFC 9112
// §6.3): refused, whatever they say.
HttpRequest::State HttpRequest::ParseField(std::string_view name, std::string_view value) {
  if (takes_ == Takes::kPages) return State::kWhole;
  if (IsSame(name, "transfer-encoding")) return Refuse(411);
  if (IsSame(name, "expect")) {
    expects_continue_ = IsSame(value, "100-continue");
    return expects_continue_ ? State::kWhole : Refuse(400);
  }
  if (!IsSame(name, "content-length")) return State::kWhole;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), content_length_);
  const bool number = error == std::errc() && end == value.data() + value.size();
  if (!number || has_length_) return Refuse(400);
  has_length_ = true;
  return State::kWhole;
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
  const bool page = method == "GET" || method == "HEAD";
  if (takes_ == Takes::kPages ? !page : method != "POST") return Refuse(405);
  // A CR ends no line of its own (RFC 9112 §2.2).
  if (!target.starts_with('/') || target.find_first_of("\r\t") != std::string_view::npos) return Refuse(400);
  is_head_ = method == "HEAD";
  path_ = target.substr(0, target.find('?'));
  return State::kWhole;
}

}  // namespace longhaul::health
