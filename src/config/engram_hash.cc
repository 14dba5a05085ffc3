#include "config/engram_hash.h"

#include <array>
#include <limits>

#include "base/check.h"

namespace senko::config {
namespace {

__extension__ typedef unsigned __int128 Uint128;

// numpy's SeedSequence for an entropy of one 32-bit word: a pool of four words, then four 64-bit state words.
std::array<uint64_t, 4> SeedState(uint32_t entropy) {
  uint32_t hash = 0x43b0d7e5u;
  const auto hash_mix = [&hash](uint32_t value) {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  };
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < 4; ++i) pool[i] = hash_mix(i == 0 ? entropy : 0);
  for (size_t from = 0; from < 4; ++from) {
    for (size_t to = 0; to < 4; ++to) {
      if (from == to) continue;
      const uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hash_mix(pool[from]);
      pool[to] = mixed ^ (mixed >> 16);
    }
  }
  uint32_t out_hash = 0x8b51f9ddu;
  std::array<uint32_t, 8> words{};
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ out_hash;
    out_hash *= 0x58f38dedu;
    value *= out_hash;
    words[i] = value ^ (value >> 16);
  }
  std::array<uint64_t, 4> state{};
  for (size_t i = 0; i < 4; ++i) state[i] = words[2 * i] | (uint64_t{words[2 * i + 1]} << 32);
  return state;
}

// PCG64 (XSL-RR, 128-bit state), seeded as numpy.random.default_rng seeds it.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const auto words = SeedState(seed);
    increment_ = (((Uint128{words[2]} << 64) | words[3]) << 1) | 1;
    Step();
    state_ += (Uint128{words[0]} << 64) | words[1];
    Step();
  }

  uint64_t Next() {
    Step();
    const uint64_t mixed = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const unsigned turn = static_cast<unsigned>(state_ >> 122);
    return (mixed >> turn) | (mixed << ((64u - turn) & 63u));
  }

  // Uniform in [0, bound) by Lemire's method, bound > 0.
  uint64_t Below(uint64_t bound) {
    Uint128 product = Uint128{Next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = Uint128{Next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void Step() {
    constexpr Uint128 kMultiplier = (Uint128{2549297995355413924u} << 64) | 4865540595714422341u;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

uint64_t MulMod(uint64_t a, uint64_t b, uint64_t m) { return static_cast<uint64_t>(Uint128{a} * b % m); }

uint64_t PowMod(uint64_t base, uint64_t exponent, uint64_t m) {
  uint64_t result = 1;
  for (base %= m; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = MulMod(result, base, m);
    base = MulMod(base, base, m);
  }
  return result;
}

}  // namespace

bool IsPrime(uint64_t n) {
  constexpr uint64_t kBases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (n < 2) return false;
  for (uint64_t p : kBases) {
    if (n % p == 0) return n == p;
  }
  uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (uint64_t base : kBases) {
    uint64_t x = PowMod(base, odd, n);
    if (x == 1 || x == n - 1) continue;
    bool witness = true;
    for (int i = 1; i < twos && witness; ++i) {
      x = MulMod(x, x, n);
      witness = x != n - 1;
    }
    if (witness) return false;
  }
  return true;
}

std::vector<uint64_t> DrawOddMultipliers(uint32_t seed, uint64_t bound, int64_t count) {
  SENKO_CHECK(bound > (uint64_t{1} << 32));
  Pcg64 generator(seed);
  std::vector<uint64_t> multipliers;
  for (int64_t i = 0; i < count; ++i) multipliers.push_back(2 * generator.Below(bound) + 1);
  return multipliers;
}

std::vector<EngramLayerHash> MakeEngramHash(const EngramConfig& engram) {
  SENKO_CHECK(engram.compressed_vocab_size > 0 && engram.vocab_size > 1);
  const uint64_t max = std::numeric_limits<int64_t>::max();
  const uint64_t bound = max / static_cast<uint64_t>(engram.compressed_vocab_size) / 2;
  std::vector<EngramLayerHash> hashes;
  // The search restarts for every n-gram size and takes primes not used before. The used ones are all those
  // from the start up to the last one taken, so a single ascending walk is the same.
  uint64_t candidate = static_cast<uint64_t>(engram.vocab_size) - 1;
  for (int64_t layer : engram.layers) {
    EngramLayerHash hash;
    hash.layer = layer;
    hash.multipliers = DrawOddMultipliers(static_cast<uint32_t>(10007 * layer), bound, engram.max_ngram);
    for (int64_t k = 0; k < (engram.max_ngram - 1) * engram.num_heads; ++k) {
      do ++candidate;
      while (!IsPrime(candidate));
      hash.offsets.push_back(hash.rows);
      hash.primes.push_back(static_cast<int64_t>(candidate));
      hash.rows += static_cast<int64_t>(candidate);
    }
    hashes.push_back(std::move(hash));
  }
  return hashes;
}

}  // namespace senko::config
