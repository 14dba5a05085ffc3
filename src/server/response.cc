#include "server/response.h"

#include <algorithm>
#include <array>
#include <ctime>

namespace senko::server {
namespace {

bool IsClean(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7F; });
}

void Add(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ").append(value).append("\r\n");
}

// "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale.
std::string HttpDate() {
  static constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  const auto two = [](int n) { return std::string{static_cast<char>('0' + n / 10), static_cast<char>('0' + n % 10)}; };
  return std::string(kDays[utc.tm_wday]) + ", " + two(utc.tm_mday) + " " + kMonths[utc.tm_mon] + " " +
         std::to_string(utc.tm_year + 1900) + " " + two(utc.tm_hour) + ":" + two(utc.tm_min) + ":" + two(utc.tm_sec) +
         " GMT";
}

}  // namespace

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "Unknown";
  }
}

std::string FormatHead(const ResponseHead& head, const Headers& common, const Headers& extra) {
  std::string out;
  out.reserve(320);
  out.append(head.http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ").append(std::to_string(head.status)).append(" ");
  out.append(StatusText(head.status)).append("\r\n");
  Add(out, "Date", HttpDate());
  if (!head.content_type.empty() && IsClean(head.content_type)) Add(out, "Content-Type", head.content_type);
  const bool no_body = head.status == 204 || head.status == 304;
  if (head.content_length) {
    if (!no_body) Add(out, "Content-Length", std::to_string(*head.content_length));
  } else if (!head.http_1_0) {
    Add(out, "Transfer-Encoding", "chunked");
  }
  if (!head.keep_alive) {
    Add(out, "Connection", "close");
  } else if (head.http_1_0) {
    Add(out, "Connection", "keep-alive");
  }
  for (const Headers* list : {&common, &extra}) {
    for (const auto& [name, value] : *list) {
      if (IsClean(name) && IsClean(value)) Add(out, name, value);
    }
  }
  out.append("\r\n");
  return out;
}

}  // namespace senko::server
