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

// Beast says the same of a line that ends wrongly behind a version that is right.
bool NamesOtherVersion(std::string_view head) {
  constexpr std::string_view kName = " HTTP/";
  const size_t at = head.substr(0, head.find_first_of("\r\n")).find(kName);
  if (at == std::string_view::npos) return false;
  const std::string_view version = head.substr(at + kName.size(), 3);
  return version != "1.1" && version != "1.0";
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
  Progress FeedHead(std::string_view bytes, size_t* used);
  size_t FindHeadEnd(std::string_view bytes);
  bool CheckHead();
  Progress Explain(const beast::error_code& ec, std::string_view head);
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
  size_t searched_ = 0;  // of the head: no end begins before here
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

RequestParser::Progress RequestParser::Impl::Explain(const beast::error_code& ec, std::string_view head) {
  if (ec == error::header_limit) {
    Bad(431, "the request's head is larger than " + std::to_string(options_.max_header_bytes) + " bytes");
  } else if (ec == error::body_limit) {
    Bad(413, "the request's body is larger than " + std::to_string(options_.max_body_bytes) + " bytes");
  } else if (ec == error::bad_version && NamesOtherVersion(head)) {
    Bad(505, "this server speaks HTTP/1.1");
  } else if (ec == error::bad_content_length) {
    Bad(400, "Content-Length is not a number of bytes");
  } else if (head_done_) {
    Bad(400, "the request's body is malformed");
  } else {
    Bad(400, "this is not an HTTP/1.1 request head");
  }
  return Progress::kBad;
}

// Where the first empty line ends, or 0. Lines that end with LF alone count: the grammar refuses them, but whoever
// sends such a head shall be told now and not when time is up.
size_t RequestParser::Impl::FindHeadEnd(std::string_view bytes) {
  for (size_t at = searched_; (at = bytes.find('\n', at)) != std::string_view::npos; ++at) {
    const std::string_view next = bytes.substr(at + 1, 2);
    if (next.starts_with('\n')) return at + 2;
    if (next == "\r\n") return at + 3;
    searched_ = at;
    if (next.empty() || next == "\r") return 0;  // may be its beginning
  }
  searched_ = bytes.size();
  return 0;
}

// The grammar sees a head when all of it is there, so that what is said of a bad one does not depend on how it was cut.
RequestParser::Progress RequestParser::Impl::FeedHead(std::string_view bytes, size_t* used) {
  const std::string_view allowed = bytes.substr(0, static_cast<size_t>(options_.max_header_bytes));
  const size_t size = FindHeadEnd(allowed);
  if (size == 0) {
    if (bytes.size() <= allowed.size()) return Progress::kMore;
    return Explain(error::header_limit, {});
  }
  beast::error_code ec;
  *used = put(boost::asio::const_buffer(bytes.data(), size), ec);
  if (ec || !is_header_done() || *used != size) return Explain(ec, bytes.substr(0, size));
  eager(true);
  return Progress::kHead;
}

RequestParser::Progress RequestParser::Impl::Feed(std::string_view bytes, size_t* used) {
  *used = 0;
  if (!head_done_) return FeedHead(bytes, used);
  // Beast waits for the whole line of a chunk, and for the last one with all trailers. They get as much room as a head,
  // and it never sees more than that, so that one byte more or less at a time makes no difference.
  const auto room = static_cast<size_t>(options_.max_header_bytes);
  while (!is_done()) {
    const std::string_view next = bytes.substr(*used, room);
    // The last chunk and the empty line behind it have five bytes, which Beast takes for granted when it sees the first
    // of them.
    if (chunked() && next.size() < 5 && next.find_first_not_of("0\r\n") == std::string_view::npos) {
      return Progress::kMore;
    }
    beast::error_code ec;
    const size_t n = put(boost::asio::const_buffer(next.data(), next.size()), ec);
    *used += n;
    if (ec && ec != error::need_more) return Explain(ec, {});
    if (n == 0 && !is_done()) return next.size() < room ? Progress::kMore : Explain(error::bad_chunk, {});
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
