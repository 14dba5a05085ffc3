#include "server/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>

#include "server/target.h"

namespace senko::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using http::error;

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

std::string Lower(beast::string_view text) {
  std::string out(text.data(), text.size());
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return Lower(c); });
  return out;
}

}  // namespace

// Beast calls the On... functions from put(). They note a fault and stop the parser with some error code.
class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  explicit Impl(const HttpOptions& options) : options_(options) {
    header_limit(static_cast<uint32_t>(options.max_header_bytes));
    body_limit(static_cast<uint64_t>(options.max_body_bytes));
    eager(false);  // stop behind the head
  }

  Progress Feed(std::string_view bytes, size_t* used);
  bool Bad(int status, std::string message) {
    if (fault_.message.empty()) fault_ = {status, std::move(message)};
    return false;
  }

  const HttpOptions& options_;
  api::HttpRequest request_;
  Fault fault_;
  bool discard_ = false;
  uint64_t body_bytes_ = 0;
  int version_ = 11;

 private:
  bool CheckHead();
  Progress Explain(const beast::error_code& ec, std::string_view rest);
  size_t OnBody(beast::string_view body, beast::error_code& ec);

  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       beast::error_code& ec) override {
    version_ = version;
    request_.method.assign(method.data(), method.size());
    if (version != 10 && version != 11) Bad(505, "this server speaks HTTP/1.1");
    if (!SplitTarget({target.data(), target.size()}, &request_.path, &request_.query)) {
      Bad(400, "the request's target is not a path");
    }
    if (!fault_.message.empty()) ec = error::bad_target;
  }
  void on_response_impl(int, beast::string_view, int, beast::error_code&) override {}
  void on_field_impl(http::field, beast::string_view name, beast::string_view value, beast::error_code& ec) override {
    if (head_done_) return;  // trailers say nothing that is wanted
    if (static_cast<int64_t>(request_.headers.size()) >= options_.max_header_count) {
      Bad(431, "the request has too many header fields");
      ec = error::header_limit;
      return;
    }
    request_.headers.emplace_back(Lower(name), std::string(value.data(), value.size()));
  }
  void on_header_impl(beast::error_code& ec) override {
    head_done_ = true;
    if (!CheckHead()) ec = error::bad_field;
  }
  void on_body_init_impl(boost::optional<uint64_t> const&, beast::error_code&) override {}
  size_t on_body_impl(beast::string_view body, beast::error_code& ec) override { return OnBody(body, ec); }
  void on_chunk_header_impl(uint64_t, beast::string_view, beast::error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view body, beast::error_code& ec) override {
    return OnBody(body, ec);
  }
  void on_finish_impl(beast::error_code&) override {}

  bool head_done_ = false;
  bool head_told_ = false;
};

// What a proxy in front could understand otherwise than we do is refused, whatever Beast makes of it.
bool RequestParser::Impl::CheckHead() {
  int lengths = 0, encodings = 0, hosts = 0;
  for (const auto& [name, value] : request_.headers) {
    if (name == "content-length") {
      ++lengths;
      // Beast takes "1, 1" too.
      if (!std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        return Bad(400, "Content-Length is not a number of bytes");
      }
    }
    if (name == "host") ++hosts;
    if (name == "transfer-encoding") {
      ++encodings;
      if (Lower(beast::string_view(value.data(), value.size())) != "chunked") {
        return Bad(501, "the only transfer encoding here is chunked");
      }
    }
  }
  if (lengths > 1 || encodings > 1) return Bad(400, "the request states its body's length more than once");
  if (lengths > 0 && encodings > 0) return Bad(400, "the request has both Content-Length and Transfer-Encoding");
  if (version_ < 11 && encodings > 0) return Bad(400, "HTTP/1.0 knows no Transfer-Encoding");
  if (hosts > 1 || (hosts == 0 && version_ >= 11)) return Bad(400, "the request must have one Host header");
  return true;
}

size_t RequestParser::Impl::OnBody(beast::string_view body, beast::error_code& ec) {
  body_bytes_ += body.size();
  if (body_bytes_ > static_cast<uint64_t>(options_.max_body_bytes)) {
    ec = error::body_limit;
    return 0;
  }
  if (!discard_) request_.body.append(body.data(), body.size());
  return body.size();
}

RequestParser::Progress RequestParser::Impl::Explain(const beast::error_code& ec, std::string_view rest) {
  if (ec == error::header_limit) {
    Bad(431, "the request's head is larger than " + std::to_string(options_.max_header_bytes) + " bytes");
  } else if (ec == error::body_limit) {
    Bad(413, "the request's body is larger than " + std::to_string(options_.max_body_bytes) + " bytes");
  } else if (ec == error::bad_version && rest.substr(0, rest.find('\r')).find(" HTTP/") != std::string_view::npos) {
    Bad(505, "this server speaks HTTP/1.1");
  } else if (ec == error::bad_content_length) {
    Bad(400, "Content-Length is not a number of bytes");
  } else if (ec == error::bad_chunk || ec == error::bad_chunk_extension) {
    Bad(400, "the chunked body is malformed");
  } else if (head_done_) {
    Bad(400, "the request's body is malformed");
  } else {
    Bad(400, "this is not an HTTP/1.1 request head");
  }
  return Progress::kBad;
}

RequestParser::Progress RequestParser::Impl::Feed(std::string_view bytes, size_t* used) {
  *used = 0;
  while (!is_done()) {
    beast::error_code ec;
    const size_t n = put(boost::asio::const_buffer(bytes.data() + *used, bytes.size() - *used), ec);
    *used += n;
    if (ec && ec != error::need_more) return Explain(ec, bytes.substr(*used));
    if (is_header_done() && !head_told_) {
      head_told_ = true;
      eager(true);
      return Progress::kHead;
    }
    if (ec == error::need_more || (n == 0 && !is_done())) {
      // A chunk's header line or the trailers wait for their end.
      if (head_done_ && bytes.size() - *used > static_cast<size_t>(options_.max_header_bytes)) {
        Bad(400, "the chunked body is malformed");
        return Progress::kBad;
      }
      return Progress::kMore;
    }
  }
  return Progress::kDone;
}

RequestParser::RequestParser(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
RequestParser::~RequestParser() = default;

RequestParser::Progress RequestParser::Feed(std::string_view bytes, size_t* used) { return impl_->Feed(bytes, used); }
const RequestParser::Fault& RequestParser::fault() const { return impl_->fault_; }
api::HttpRequest& RequestParser::request() { return impl_->request_; }
bool RequestParser::complete() const { return impl_->is_done(); }
bool RequestParser::http_1_0() const { return impl_->version_ < 11; }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
bool RequestParser::chunked() const { return impl_->chunked(); }
std::optional<uint64_t> RequestParser::content_length() const {
  const auto length = impl_->content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}
uint64_t RequestParser::body_bytes() const { return impl_->body_bytes_; }
void RequestParser::DiscardBody() { impl_->discard_ = true; }

}  // namespace senko::server
