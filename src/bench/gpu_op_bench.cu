// Times of one operator behind a pass over more memory than the second-level cache holds: graphs of both and of the
// passes alone, in turns. Their difference has the operator's launch behind another kernel in it, as a step has.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "bench/gpu_data.h"
#include "bench/gpu_op_bench.h"
#include "bench/measure.h"
#include "cuda/bench_device.cuh"
#include "cuda/check.h"

namespace senko::bench {
namespace {

constexpr size_t kFlushBytes = size_t{192} << 20;  // an H200 caches 50 MB
constexpr int kRounds = 5;

// Ordinary loads: they push out whatever lies in the cache, and leave nothing there to be written back.
__global__ void FlushKernel(const uint4* data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    sum |= v.x | v.y | v.z | v.w;
  }
  if (sum != 0) *sink = sum;  // never: all is zero
}

// Clock cycles and nanoseconds of the same while: the multiprocessors' clock under the load just before.
__global__ void ClockKernel(long long* out) {
  constexpr long long kNanoseconds = 100000;
  const auto now = [] {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  };
  const long long begin = now(), cycles = clock64();
  long long end;
  while ((end = now()) - begin < kNanoseconds) {
  }
  out[0] = clock64() - cycles;
  out[1] = end - begin;
}

class Graph {
 public:
  Graph(cudaStream_t stream, int calls, const std::function<void()>& call) {
    SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call();
    cudaGraph_t graph = nullptr;
    SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
    SENKO_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
    SENKO_CUDA(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

class Stopwatch {
 public:
  Stopwatch() : flushed_(data_.Zeros<uint4>(kFlushBytes / sizeof(uint4))) {
    sink_ = data_.Zeros<uint32_t>(1);
    clock_ = data_.Zeros<long long>(2);
    SENKO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SENKO_CUDA(cudaEventCreate(&begin_));
    SENKO_CUDA(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  struct Times {
    double seconds = 0;
    double clock_hz = 0;
  };
  Times Time(const GpuWork& work) {
    const auto both = [&] {
      Flush();
      work(stream_);
    };
    both();  // loads the kernels, which no capture may
    SENKO_CUDA(cudaStreamSynchronize(stream_));
    double estimate;
    {
      const Graph few(stream_, 3, both);
      Seconds(few);
      estimate = Seconds(few) / 3;
    }
    const int calls = static_cast<int>(std::clamp(4e-3 / estimate, 3.0, 40.0));
    const Graph with(stream_, calls, both), without(stream_, calls, [&] { Flush(); });
    Seconds(with);
    Seconds(without);
    std::vector<double> seconds, clocks;
    for (int round = 0; round < kRounds; ++round) {
      const double all = Seconds(with);
      clocks.push_back(Clock());
      seconds.push_back((all - Seconds(without)) / calls);
    }
    return {std::max(Median(seconds), 1e-7), Median(clocks)};
  }

 private:
  void Flush() {
    FlushKernel<<<1056, 256, 0, stream_>>>(flushed_, kFlushBytes / sizeof(uint4), sink_);
    SENKO_CUDA(cudaGetLastError());
  }
  double Seconds(const Graph& graph) {
    SENKO_CUDA(cudaEventRecord(begin_, stream_));
    SENKO_CUDA(cudaGraphLaunch(graph.exec(), stream_));
    SENKO_CUDA(cudaEventRecord(end_, stream_));
    SENKO_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e-3;
  }
  double Clock() {
    ClockKernel<<<1, 1, 0, stream_>>>(clock_);
    SENKO_CUDA(cudaGetLastError());
    long long host[2];
    SENKO_CUDA(cudaMemcpyAsync(host, clock_, sizeof(host), cudaMemcpyDeviceToHost, stream_));
    SENKO_CUDA(cudaStreamSynchronize(stream_));
    return static_cast<double>(host[0]) / static_cast<double>(host[1]) * 1e9;
  }

  GpuData data_;
  uint4* flushed_;
  uint32_t* sink_ = nullptr;
  long long* clock_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void FillRandom(void* data, size_t bytes, uint32_t mask, uint32_t set) {
  cuda::FillRandom<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, mask, set);
  SENKO_CUDA(cudaGetLastError());
}

std::vector<OpResult> RunGpuOpCases(const std::string& filter, const Machine& machine) {
  return RunGpuOpCases(filter, machine, nullptr);
}

std::vector<OpResult> RunGpuOpCases(const std::string& filter, const Machine& machine, const ProductLibrary* library) {
  Stopwatch stopwatch;
  std::vector<OpResult> results;
  for (const GpuOpCase& op : GpuOpCases()) {
    if (op.name.find(filter) == std::string::npos) continue;
    GpuWorks works = op.prepare();
    OpResult r;
    r.name = op.name;
    r.baseline = op.baseline;
    if (library != nullptr && !op.products.empty()) {
      works.baseline = library->prepare(op.products);
      r.baseline = works.baseline ? library->name : "";
    }
    SENKO_CUDA(cudaDeviceSynchronize());  // what the default stream filled
    const Stopwatch::Times times = stopwatch.Time(works.work);
    r.seconds = times.seconds;
    r.clock_hz = times.clock_hz;
    r.bytes = op.bytes;
    r.flops = op.flops;
    if (!op.host_memory) r.SetLimit(machine.read_bytes_per_second, machine.flops_per_second() * op.rate);
    if (!r.baseline.empty()) r.baseline_seconds = stopwatch.Time(works.baseline).seconds;
    results.push_back(std::move(r));
  }
  return results;
}

}  // namespace senko::bench
