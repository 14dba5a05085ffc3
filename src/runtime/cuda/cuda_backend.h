// The CUDA backend (backend.h): one GPU, its weights and its memory plan.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace senko::runtime {

// Errors: as MakeBackend; kNotFound without a driver or GPU.
std::unique_ptr<Backend> MakeCudaBackend(const BackendOptions& options, const model::Model& model, ThreadPool& pool,
                                         const ProgressSink& progress);

}  // namespace senko::runtime
