// Properties of selection over random shapes: the streaming version equals the reference, whatever the
// threads.
#include <rapidcheck.h>

#include "gtest/gtest.h"
#include "ops/select/select_fixture.h"

namespace senko::ops {
namespace {

TEST(SelectProperty, StreamingEqualsReference) {
  ThreadPool one(1), three(3);
  const auto property = [&] {
    const int64_t rows = *rc::gen::inRange<int64_t>(1, 20);
    const IndexShape shape{.heads = *rc::gen::inRange<int64_t>(1, 4),
                           .dim = 32,
                           .entries = *rc::gen::inRange<int64_t>(1, 9000),
                           .sequences = *rc::gen::inRange<int64_t>(1, 3),
                           .rows = rows,
                           .entries_per_page = *rc::gen::element<int64_t>(32, 64, 128)};
    const int64_t topk = *rc::gen::inRange<int64_t>(1, 300);
    const uint64_t seed = *rc::gen::arbitrary<uint64_t>();
    const int levels = *rc::gen::inRange(0, 5);  // 0: scores hardly ever tie
    const int64_t block_size = *rc::gen::inRange<int64_t>(1, 40);
    // model.md 11.11: enough candidates to fill the selection.
    const int64_t blocks = (topk + block_size - 1) / block_size + 1 + *rc::gen::inRange<int64_t>(0, 100);

    SelectFixture want(shape, seed, topk);
    if (levels > 0) want.Coarsen(seed, levels);
    for (int64_t& n : want.visible) n = *rc::gen::inRange<int64_t>(0, shape.entries + 1);
    want.Publish(blocks, block_size);
    SelectReference(want.params, one);

    for (ThreadPool* pool : {&one, &three}) {
      std::vector<int32_t> selected(want.selected.size(), kUnwritten), count(want.selected_count.size(), kUnwritten);
      std::vector<int32_t> blocks_out(want.candidates_out.size(), kUnwritten), block_count(count);
      SelectParams p = want.params;
      p.selected = selected.data();
      p.selected_count = count.data();
      p.candidates_out = blocks_out.data();
      p.candidate_count_out = block_count.data();
      SelectCpu(p, *pool);
      RC_ASSERT(selected == want.selected);
      RC_ASSERT(count == want.selected_count);
      RC_ASSERT(blocks_out == want.candidates_out);
      RC_ASSERT(block_count == want.candidate_count_out);
    }

    // A later layer: other weights, restricted to those blocks.
    for (float& w : want.index.weights) w = -w;
    want.RestrictToPublished();
    SelectReference(want.params, one);
    for (ThreadPool* pool : {&one, &three}) {
      std::vector<int32_t> selected(want.selected.size(), kUnwritten), count(want.selected_count.size(), kUnwritten);
      SelectParams p = want.params;
      p.selected = selected.data();
      p.selected_count = count.data();
      SelectCpu(p, *pool);
      RC_ASSERT(count == want.selected_count);
      for (size_t row = 0; row < count.size(); ++row) {
        const auto begin = static_cast<std::ptrdiff_t>(row) * want.params.selected_stride;
        RC_ASSERT(
            std::equal(selected.begin() + begin, selected.begin() + begin + count[row], want.selected.begin() + begin));
      }
    }
  };
  EXPECT_TRUE(rc::check("streaming equals reference", property));
}

}  // namespace
}  // namespace senko::ops
