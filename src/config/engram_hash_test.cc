#include "config/engram_hash.h"

#include <gtest/gtest.h>

namespace senko::config {
namespace {

EngramConfig Released() {
  EngramConfig engram;
  engram.layers = {1, 14};
  engram.max_ngram = 4;
  engram.vocab_size = 16000000;
  engram.num_heads = 8;
  engram.head_dim = 256;
  engram.compressed_vocab_size = 99092;
  return engram;
}

// The lists of model.md 3.7, as published with the checkpoint.
TEST(EngramHash, ReproducesTheReleasedConstants) {
  const auto hashes = MakeEngramHash(Released());
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0].multipliers,
            (std::vector<uint64_t>{76632096046245u, 4839876093313u, 35959672319349u, 73987337458391u}));
  EXPECT_EQ(hashes[1].multipliers,
            (std::vector<uint64_t>{67716810739261u, 51510806800915u, 30921347202721u, 82619226485591u}));
  std::vector<int64_t> first, second;
  for (int64_t tail : {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                       277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463}) {
    first.push_back(16000000 + tail);
  }
  for (int64_t tail : {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                       711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}) {
    second.push_back(16000000 + tail);
  }
  EXPECT_EQ(hashes[0].primes, first);
  EXPECT_EQ(hashes[1].primes, second);
  EXPECT_EQ(hashes[0].rows, 384006168);
  EXPECT_EQ(hashes[1].rows, 384016682);
  EXPECT_EQ(hashes[1].offsets[0], 0);
  EXPECT_EQ(hashes[1].offsets[2], 16000477 + 16000487);
}

// The mini model of model.md 9.
TEST(EngramHash, ReproducesTheMiniConstants) {
  EngramConfig mini;
  mini.layers = {1, 4};
  mini.max_ngram = 4;
  mini.vocab_size = 97;
  mini.num_heads = 2;
  mini.compressed_vocab_size = 256;
  const auto hashes = MakeEngramHash(mini);
  EXPECT_EQ(hashes[0].primes, (std::vector<int64_t>{97, 101, 103, 107, 109, 113}));
  EXPECT_EQ(hashes[1].primes, (std::vector<int64_t>{127, 131, 137, 139, 149, 151}));
  EXPECT_EQ(hashes[0].rows, 630);
  EXPECT_EQ(hashes[1].rows, 834);
  EXPECT_EQ(hashes[0].offsets, (std::vector<int64_t>{0, 97, 198, 301, 408, 517}));
  EXPECT_EQ(hashes[0].multipliers,
            (std::vector<uint64_t>{29662608052400909u, 1873410163432121u, 13919202536988139u, 28638879857136817u}));
  EXPECT_EQ(hashes[1].multipliers,
            (std::vector<uint64_t>{31841131192811251u, 1950019090429101u, 28509641033320619u, 7337012813361983u}));
}

// numpy.random.default_rng(seed).integers(0, 3 * 2**61 + 12345, 4), whose rejection rate of 1/4 exercises the
// retry path. Values from numpy 2.
TEST(EngramHash, DrawsLikeNumpyWhenItRejects) {
  const uint64_t bound = 3 * (uint64_t{1} << 61) + 12345;
  EXPECT_EQ(DrawOddMultipliers(10007, bound, 4), (std::vector<uint64_t>{11390441492121970189u, 719389502757936171u,
                                                                        5344973774203455139u, 5939149901103846849u}));
  EXPECT_EQ(
      DrawOddMultipliers(4000000000u, bound, 4),
      (std::vector<uint64_t>{2034912606561398163u, 8953576837568754435u, 10975236093844329865u, 2548023984401001991u}));
}

TEST(EngramHash, PrimalityAgreesWithTrialDivision) {
  const auto slow = [](uint64_t n) {
    for (uint64_t d = 2; d * d <= n; ++d) {
      if (n % d == 0) return false;
    }
    return n > 1;
  };
  for (uint64_t n = 0; n < 20000; ++n) EXPECT_EQ(IsPrime(n), slow(n)) << n;
  for (uint64_t n = 4294967296u; n < 4294967296u + 200; ++n) EXPECT_EQ(IsPrime(n), slow(n)) << n;
  EXPECT_FALSE(IsPrime(3215031751u));           // strong pseudoprime to bases 2, 3, 5, 7
  EXPECT_FALSE(IsPrime(3825123056546413051u));  // to the primes up to 23
  EXPECT_TRUE(IsPrime(18446744073709551557u));  // the largest prime below 2^64
}

}  // namespace
}  // namespace senko::config
