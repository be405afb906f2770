// The head of an HTTP/1 request, as its bytes come: of a GET or a HEAD, and of nothing else. A body is not
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::health {

class HttpRequest {
 public:
  // Of a whole head; Prometheus and kubelets send 200 to 400 bytes, browsers with their cookies 2,000.
  static constexpr size_t kMaxBytes = 8192;

  enum class State : uint8_t {
    kMore,     // the head is not at its end
    kWhole,    // path() and is_head() say what is asked for
    kRefused,  // refusal() says why
  };
  // Takes no more than it needs. REQUIRES: it was kMore so far.
  State Take(std::string_view bytes);

  // Without its query.
  const std::string& path() const { return path_; }
  bool is_head() const { return is_head_; }
  // 400 no HTTP, 405 another method, 431 too long, 505 another version.
  int refusal() const { return refusal_; }

 private:
  State Refuse(int code);
  State Parse(std::string_view head);
  State ParseLine(std::string_view line);

  std::string head_;
  std::string path_;
  bool is_head_ = false;
  int refusal_ = 0;
};

}  // namespace longhaul::health
