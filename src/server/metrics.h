// Counters and histograms as Prometheus reads them. Updating one costs well below a microsecond, from any thread;
// what others count already is only read when somebody asks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace senko::server {

class MetricsRegistry {
 public:
  using Labels = std::map<std::string, std::string>;

  // `common` labels go on every metric.
  explicit MetricsRegistry(Labels common);
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // Thread-safe; lives as long as the registry.
  class Counter {
   public:
    virtual ~Counter() = default;
    virtual void Add(double value) = 0;  // >= 0
  };
  class Histogram {
   public:
    virtual ~Histogram() = default;
    virtual void Observe(double value) = 0;
  };
  // The same name may be added again with other labels.
  Counter* AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds` ascend; what is above the last goes in one more bucket.
  Histogram* AddHistogram(const std::string& name, const std::string& help, std::vector<double> bounds);

  // Read at every scrape.
  struct Sample {
    enum class Kind { kCounter, kGauge } kind;
    std::string name, help;
    double value;
    bool common_labels = true;  // Prometheus' own names, as process_*, stand alone
  };
  void AddSamples(std::function<std::vector<Sample>()> read);

  // Prometheus' text format, version 0.0.4. Thread-safe.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace senko::server
