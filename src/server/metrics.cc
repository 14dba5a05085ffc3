#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <deque>
#include <mutex>
#include <sstream>
#include <utility>

namespace senko::server {
namespace {

class CounterImpl final : public MetricsRegistry::Counter {
 public:
  explicit CounterImpl(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double value) override { counter_->Increment(value); }

 private:
  prometheus::Counter* const counter_;
};

class HistogramImpl final : public MetricsRegistry::Histogram {
 public:
  explicit HistogramImpl(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_->Observe(value); }

 private:
  prometheus::Histogram* const histogram_;
};

}  // namespace

struct MetricsRegistry::Impl {
  explicit Impl(Labels labels) : common(std::move(labels)) {}

  const Labels common;
  // Merge: the same name and help are one family, however often it is built.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  mutable std::mutex mutex;  // of what follows
  std::deque<CounterImpl> counters;
  std::deque<HistogramImpl> histograms;
  std::vector<std::function<std::vector<Sample>()>> samples;
};

MetricsRegistry::MetricsRegistry(Labels common) : impl_(std::make_unique<Impl>(std::move(common))) {}
MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry::Counter* MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                                      const Labels& labels) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Labels(impl_->common).Register(impl_->registry);
  const std::lock_guard lock(impl_->mutex);
  return &impl_->counters.emplace_back(&family.Add(labels));
}

MetricsRegistry::Histogram* MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                                          std::vector<double> bounds) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Labels(impl_->common).Register(impl_->registry);
  const std::lock_guard lock(impl_->mutex);
  return &impl_->histograms.emplace_back(
      &family.Add({}, prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end())));
}

void MetricsRegistry::AddSamples(std::function<std::vector<Sample>()> read) {
  const std::lock_guard lock(impl_->mutex);
  impl_->samples.push_back(std::move(read));
}

std::string MetricsRegistry::Text() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  std::vector<std::function<std::vector<Sample>()>> samples;
  {
    const std::lock_guard lock(impl_->mutex);
    samples = impl_->samples;
  }
  for (const auto& read : samples) {
    for (Sample& sample : read()) {
      prometheus::ClientMetric metric;
      if (sample.common_labels) {
        for (const auto& [name, value] : impl_->common) metric.label.push_back({name, value});
      }
      prometheus::MetricFamily family;
      if (sample.kind == Sample::Kind::kCounter) {
        metric.counter.value = sample.value;
        family.type = prometheus::MetricType::Counter;
      } else {
        metric.gauge.value = sample.value;
        family.type = prometheus::MetricType::Gauge;
      }
      family.name = std::move(sample.name);
      family.help = std::move(sample.help);
      family.metric.push_back(std::move(metric));
      families.push_back(std::move(family));
    }
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace senko::server
