// The head of an HTTP/1 request, as its bytes come: of a GET or a HEAD, or, where a port takes reports, of a
// POST. A body is not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::health {

// The words of a status line (RFC 9110), of those that are answered here; of any other those of 505.
const char* ReasonOf(int code);

class HttpRequest {
 public:
  // Of a whole head; Prometheus and kubelets send 200 to 400 bytes, browsers with their cookies 2,000.
  static constexpr size_t kMaxBytes = 8192;

  enum class State : uint8_t {
    kMore,     // the head is not at its end
    kWhole,    // path() and is_head() say what is asked for
    kRefused,  // refusal() says why
  };
  enum class Takes : uint8_t { kPages, kPosts };
  explicit HttpRequest(Takes takes = Takes::kPages) : takes_(takes) {}

  // Takes no more than it needs. REQUIRES: it was kMore so far.
  State Take(std::string_view bytes);
  // Of the bytes of the last Take those that belong to the head, once that is whole; what follows is the
  // body.
  size_t taken() const { return taken_; }

  // Without its query.
  const std::string& path() const { return path_; }
  bool is_head() const { return is_head_; }
  // Of a POST: the bytes of its body.
  uint64_t content_length() const { return content_length_; }
  // The client waits for "100 Continue" before it sends the body.
  bool expects_continue() const { return expects_continue_; }
  // 400 no HTTP, 405 another method, 411 a POST that does not say its length, 431 too long, 505 another
  // version.
  int refusal() const { return refusal_; }

 private:
  State Refuse(int code);
  State Parse(std::string_view head);
  State ParseLine(std::string_view line);
  State ParseField(std::string_view name, std::string_view value);

  Takes takes_;
  std::string head_;
  std::string path_;
  bool is_head_ = false;
  int refusal_ = 0;
  size_t taken_ = 0;
  bool has_length_ = false;
  uint64_t content_length_ = 0;
  bool expects_continue_ = false;
};

}  // namespace longhaul::health
