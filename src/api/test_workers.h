// For tests of what a worker holds back while it is busy.
#pragma once

#include <functional>
#include <future>
#include <utility>

#include "api/workers.h"

namespace senko::api {

// From its construction to its end the one thread of `workers` has done `first` and is in a long job that stood right
// behind it in the queue.
class LongJobBehind {
 public:
  LongJobBehind(Workers& workers, std::function<void()> first) {
    workers.Post([go = go_.get_future().share()] { go.wait(); });
    workers.Post(std::move(first));
    workers.Post([this, end = end_.get_future().share()] {
      begun_.set_value();
      end.wait();
    });
    go_.set_value();
    begun_.get_future().wait();
  }
  ~LongJobBehind() { end_.set_value(); }
  LongJobBehind(const LongJobBehind&) = delete;
  LongJobBehind& operator=(const LongJobBehind&) = delete;

 private:
  std::promise<void> go_, begun_, end_;
};

}  // namespace senko::api
