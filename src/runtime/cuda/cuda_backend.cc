#include "runtime/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "ops/select/select_sm90.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/cuda/cuda_step_runner.h"

namespace senko::runtime {
namespace {

// What the plan leaves for captured graphs, the head's launches and the runtime's own.
constexpr int64_t kGraphBytes = int64_t{256} << 20;

std::string GiB(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// Plain device memory.
class DeviceMemory final : public cache::Memory {
 public:
  uint8_t* Take(size_t bytes, const char* what) override {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw Error(ErrorCode::kResourceExhausted, "the GPU has no " + std::to_string(bytes) + " bytes left for " + what);
    }
    SENKO_CUDA(status);
    taken_ += static_cast<int64_t>(bytes);
    return static_cast<uint8_t*>(data);
  }
  void Give(uint8_t* data, size_t bytes) noexcept override {
    taken_ -= data != nullptr ? static_cast<int64_t>(bytes) : 0;
    cudaFree(data);
  }
  void Fill(uint8_t* data, uint8_t value, size_t bytes) override {
    SENKO_CUDA(cudaMemset(data, value, bytes));
    SENKO_CUDA(cudaDeviceSynchronize());
  }
  int64_t taken() const { return taken_; }

 private:
  int64_t taken_ = 0;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const BackendOptions& options, const model::Model& model, ThreadPool& pool, const ProgressSink& progress)
      : options_(options), model_(model), device_(cuda::UseDevice(0)) {
    if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
      throw Error(ErrorCode::kInvalidArgument, "--gpu-memory-utilization: must be above 0 and at most 1");
    }
    if (model.options().numerics == numerics::NumericsMode::kModelNoAq) {
      throw Error(ErrorCode::kUnsupported,
                  "--device cuda computes with --numerics model or float, not with model-noaq");
    }
    if (options.chosen_ops) {
      throw Error(ErrorCode::kUnsupported, "--op-impl chooses among the CPU's operators; --device cuda has its own");
    }
    CheckDeviceLimits(model.config(), model.rounds_to_bf16());
    size_t free = 0, total = 0;
    SENKO_CUDA(cudaMemGetInfo(&free, &total));
    total_ = static_cast<int64_t>(total);
    budget_ = static_cast<int64_t>(static_cast<double>(total) * options.gpu_memory_utilization) -
              static_cast<int64_t>(total - free);  // what others hold counts as taken
    weight_bytes_ = static_cast<int64_t>(DeviceWeightBytes(model)) + DeviceEngram::DeviceBytes(model);
    if (weight_bytes_ > budget_) {
      throw Error(ErrorCode::kResourceExhausted,
                  "the weights take " + GiB(weight_bytes_) + " of " + device_.name + ", which has " + GiB(total_) +
                      ", of them " + GiB(static_cast<int64_t>(free)) + " free; --gpu-memory-utilization leaves " +
                      GiB(std::max<int64_t>(budget_, 0)));
    }
    free_before_ = static_cast<int64_t>(free);
    const StartPart weights;
    arena_ = DeviceArena(DeviceWeightBytes(model));
    weights_ = LoadDeviceWeights(model, arena_, pool, progress, &report_);
    report_.weights = weights.End();
    const StartPart engram;
    engram_.emplace(model, pool, progress);
    report_.engram = engram.End();
  }

  cache::Memory& memory() override { return memory_; }

  int64_t DefaultCacheBytes(const ExecutorLimits& limits) const override {
    CheckCacheBytes(limits, 1);
    return Left(limits);
  }

  void CheckCacheBytes(const ExecutorLimits& limits, int64_t bytes) const override {
    if (limits.max_rows > ops::kMaxSelectRowsSm90) {
      throw Error(ErrorCode::kInvalidArgument, "--max-num-batched-tokens " + std::to_string(limits.max_rows) +
                                                   ": at most " + std::to_string(ops::kMaxSelectRowsSm90) +
                                                   " with --device cuda");
    }
    if (bytes <= Left(limits)) return;
    std::string fits = "no step fits";
    for (ExecutorLimits smaller = limits; smaller.max_rows > 1;) {
      smaller.max_rows /= 2;
      if (bytes > Left(smaller)) continue;
      fits = "they fit with --max-num-batched-tokens " + std::to_string(smaller.max_rows);
      break;
    }
    throw Error(ErrorCode::kResourceExhausted, "pages, slots and snapshots of " + GiB(bytes) + " (" +
                                                   std::to_string(bytes) + " bytes) do not fit beside the rest (" +
                                                   Describe(limits) + "); " + fits);
  }

  std::string Describe(const ExecutorLimits& limits) const override {
    return device_.name + ": " + GiB(budget_) + " of " + GiB(total_) + " to use: weights " + GiB(weight_bytes_) +
           ", a step of " + std::to_string(limits.max_rows) + " rows " +
           GiB(static_cast<int64_t>(CudaExecutor::DeviceBytes(model_, limits))) + ", graphs " + GiB(kGraphBytes) +
           ", left for pages and slots " + GiB(Left(limits)) +
           (DeviceEngram::HostBytes(model_) > 0
                ? "; Engram tables in host memory " + GiB(DeviceEngram::HostBytes(model_))
                : "");
  }

  std::unique_ptr<Executor> MakeExecutor(cache::PagePool& pages, const ExecutorLimits& limits) override {
    planned_bytes_ =
        weight_bytes_ + kGraphBytes + memory_.taken() + static_cast<int64_t>(CudaExecutor::DeviceBytes(model_, limits));
    return std::make_unique<CudaExecutor>(model_, weights_, *engram_, pages, limits,
                                          options_.cuda_graphs && model_.rounds_to_bf16(), &report_);
  }
  std::string DescribeStart() const override {
    return report_.ToString() + "; of the GPU's memory " + GiB(free_before_ - StartPart::Free()) + " were taken, " +
           GiB(planned_bytes_) + " planned";
  }
  std::unique_ptr<StepRunner> MakeRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
                                         ThreadPool& pool, int64_t max_drawn_rows) override {
    return std::make_unique<CudaStepRunner>(dynamic_cast<CudaExecutor&>(executor), slots, snapshots, pool,
                                            max_drawn_rows);
  }

 private:
  int64_t Left(const ExecutorLimits& limits) const {
    return budget_ - weight_bytes_ - kGraphBytes - static_cast<int64_t>(CudaExecutor::DeviceBytes(model_, limits));
  }

  const BackendOptions options_;
  const model::Model& model_;
  cuda::Device device_;
  int64_t total_ = 0;
  int64_t budget_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t free_before_ = 0;
  int64_t planned_bytes_ = 0;  // of everything, once there is an executor
  StartReport report_;
  DeviceMemory memory_;
  DeviceArena arena_;
  DeviceWeights weights_;
  std::optional<DeviceEngram> engram_;
};

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const BackendOptions& options, const model::Model& model, ThreadPool& pool,
                                         const ProgressSink& progress) {
  return std::make_unique<CudaBackend>(options, model, pool, progress);
}

}  // namespace senko::runtime
