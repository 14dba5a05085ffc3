// `senko bench ops --device cuda` with NVIDIA's library as the baseline of products: bf16 weights, four times the bytes
// of FP4 ones and twice those of FP8. A program of its own, so that Senko is not linked against the library.
#include <cublasLt.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "bench/gpu_data.h"
#include "bench/gpu_op_bench.h"

namespace senko::bench {
namespace {

void Check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorCode::kUnsupported, std::string("cuBLASLt: ") + cublasLtGetStatusString(status));
  }
}

constexpr size_t kWorkspace = size_t{32} << 20;

// One product with the algorithm that the library thinks best.
class LibraryProduct {
 public:
  LibraryProduct(cublasLtHandle_t handle, const Product& p) : handle_(handle) {
    Check(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Check(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    const auto rows = static_cast<uint64_t>(p.rows), out = static_cast<uint64_t>(p.out),
               in = static_cast<uint64_t>(p.in);
    // Column-major: y^T [out, rows] = w [in, out]^T x^T [in, rows].
    Check(cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, in, out, p.in));
    Check(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, in, rows, p.in));
    Check(cublasLtMatrixLayoutCreate(&y_, CUDA_R_16BF, out, rows, p.out));
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference));
    Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                               sizeof(kWorkspace)));
    int found = 0;
    Check(cublasLtMatmulAlgoGetHeuristic(handle, desc_, w_, x_, y_, y_, preference, 1, &best_, &found));
    Check(cublasLtMatmulPreferenceDestroy(preference));
    if (found == 0) throw Error(ErrorCode::kUnsupported, "cuBLASLt: no algorithm for a product");
    weight_ = data_.Random<__nv_bfloat16>(p.out * p.in, 0x80FF80FFu, 0x3D003D00u);
    input_ = data_.Rows(p.rows * p.in);
    output_ = data_.Zeros<__nv_bfloat16>(p.rows * p.out);
    workspace_ = data_.Zeros<uint8_t>(static_cast<int64_t>(kWorkspace));
  }
  ~LibraryProduct() {
    cublasLtMatrixLayoutDestroy(w_);
    cublasLtMatrixLayoutDestroy(x_);
    cublasLtMatrixLayoutDestroy(y_);
    cublasLtMatmulDescDestroy(desc_);
  }
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  void Run(cudaStream_t stream) const {
    const float one = 1, zero = 0;
    Check(cublasLtMatmul(handle_, desc_, &one, weight_, w_, input_, x_, &zero, output_, y_, output_, y_, &best_.algo,
                         workspace_, kWorkspace, stream));
  }

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t best_ = {};
  GpuData data_;
  __nv_bfloat16 *weight_, *input_, *output_;
  uint8_t* workspace_;
};

int Main(const std::string& filter) {
  const Machine machine = MeasureGpu();
  cublasLtHandle_t handle = nullptr;
  Check(cublasLtCreate(&handle));
  const ProductLibrary library{"cuBLASLt, bf16", [handle](const std::vector<Product>& products) -> GpuWork {
                                 auto all = std::make_shared<std::vector<std::unique_ptr<LibraryProduct>>>();
                                 for (const Product& p : products) {
                                   all->push_back(std::make_unique<LibraryProduct>(handle, p));
                                 }
                                 return [all](cudaStream_t stream) {
                                   for (const auto& product : *all) product->Run(stream);
                                 };
                               }};
  std::printf("%s", ToText(machine).c_str());
  std::printf("%s", ToText(RunGpuOpCases(filter, machine, &library)).c_str());
  Check(cublasLtDestroy(handle));
  return 0;
}

}  // namespace
}  // namespace senko::bench

// ops_sm90_bench [FILTER]
int main(int count, char** arguments) {
  try {
    return senko::bench::Main(count > 1 ? arguments[1] : "");
  } catch (const senko::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
