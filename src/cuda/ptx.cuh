// The instructions of sm_90a that C++ has no words for, one function each. Shared addresses are 32-bit.
#pragma once

#include <cstdint>

namespace senko::cuda {

__device__ inline uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- programmatic dependent launch ----

// What the kernels before this one in the stream have written may be read from here on.
__device__ inline void WaitForPrevious() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may begin, as far as its own WaitForPrevious.
__device__ inline void LetNextBegin() { asm volatile("griddepcontrol.launch_dependents;"); }

// ---- loads and copies ----

// Weights: read once, so they shall not push anything out of the caches.
__device__ inline uint4 LoadStreaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// 16 bytes that other kernels write; in the order of the program, so that several of them are on the way at once.
__device__ inline uint4 LoadNow(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
// 16 bytes into shared memory, or zeros.
__device__ inline void CopyAsync16(uint32_t to, const void* from, bool really) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(really ? 16 : 0) : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- mbarriers ----

__device__ inline void InitBarrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// When this thread's copies so far have landed; counts as one of the barrier's arrivals.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra ready;\nbra again;\nready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// `bytes`, a multiple of 16, both ends 16-byte aligned.
__device__ inline void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Barriers as they have been set up become visible to the other blocks of the cluster, behind its barrier, and to bulk
// copies.
__device__ inline void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Ordinary writes to shared memory become visible to wgmma and bulk copies.
__device__ inline void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters ----

__device__ inline void ClusterArrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Only says that this block has got here, not what it has written: without the fence of the other one, which waits for
// all of the thread's writes, those to global memory too.
__device__ inline void ClusterArriveRelaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void ClusterWait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline float LoadOfBlock(uint32_t shared, uint32_t block) {
  uint32_t remote;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(remote) : "memory");
  return v;
}

// Where `shared` lies in a block of the cluster.
__device__ inline uint32_t AddressInBlock(uint32_t shared, uint32_t block) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(block));
  return remote;
}
// Stores into shared memory of a block of the cluster and counts the four bytes at a barrier of the same block, which
// need not exist any longer than that takes. Both addresses are AddressInBlock's.
__device__ inline void StoreCounting(uint32_t to, float v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(v)), "r"(barrier)
               : "memory");
}

// Where `shared` lies in another block of the cluster.
template <typename T>
__device__ inline T* InBlock(T* shared, uint32_t block) {
  uint64_t remote;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(shared), "r"(block));
  return reinterpret_cast<T*>(remote);
}

// ---- matrices ----

// Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void LoadMatrices(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}
// c += a b^T, 16 x 8 x 16. Bit for bit what wgmma adds for the same 16 columns (measured on H200).
__device__ inline void MultiplyAdd16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int kRegisters>
__device__ inline void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace senko::cuda
