// The constants of Engram's n-gram hash (model.md 3.7): derived from the configuration, never read from a
// file.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace senko::config {

// One layer's hash. A row of its table is  (h_g mod primes[k]) + offsets[k],  k = (g - 2) * num_heads + head,
// where h_g is the xor over s < g of compressed_id[i - s] * multipliers[s].
struct EngramLayerHash {
  int64_t layer = 0;
  std::vector<uint64_t> multipliers;  // [max_ngram], odd, below 2^63 / compressed_vocab_size
  std::vector<int64_t> primes;        // [(max_ngram - 1) * num_heads], n-gram size major
  std::vector<int64_t> offsets;       // exclusive prefix sums of primes
  int64_t rows = 0;                   // sum of primes: the rows of this layer's table
};

// One hash per EngramConfig::layers, from vocab_size, num_heads, max_ngram, compressed_vocab_size and the
// layer numbers. `engram.rows` is not used. The numbers are in the ranges ParseModelConfig enforces.
std::vector<EngramLayerHash> MakeEngramHash(const EngramConfig& engram);

// `count` numbers 2 * v + 1 with v = numpy.random.default_rng(seed).integers(0, bound, count): SeedSequence,
// PCG64 and Lemire's bounded integers. bound > 2^32 (below it numpy draws 32-bit words).
std::vector<uint64_t> DrawOddMultipliers(uint32_t seed, uint64_t bound, int64_t count);

// Exact for every n (Miller-Rabin with a base set proven sufficient below 2^64).
bool IsPrime(uint64_t n);

}  // namespace senko::config
