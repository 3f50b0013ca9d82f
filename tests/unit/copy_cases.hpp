// Updates that also write copies of their masters (attribute `copy` of adamw and muon_update).
#pragma once

#include "kernel_cases.hpp"

namespace espalier::testing {

/// The same update, which also writes a copy of each master after its other `each` outputs.
inline Case WithCopies(Case c, size_t each) {
  Random random(11);
  std::vector<OwnedTensor> outputs;
  for (size_t o = 0; o < c.outputs.size(); ++o) {
    outputs.push_back(c.outputs[o]);
    if (o % each + 1 < each) continue;
    const OwnedTensor& master = c.outputs[o + 1 - each];
    outputs.push_back(random.Real(kBf16, master.shape(), -1, 1));
  }
  c.outputs = std::move(outputs);
  c.attributes.texts["copy"] = "bf16";
  return c;
}

/// The update `c` with copies: all other results keep their bits, and a copy is its master, rounded to nearest.
inline void CheckCopies(const Case& c, size_t each) {
  const Case with = WithCopies(c, each);
  const std::vector<OwnedTensor> plain = c.Tested(), tested = with.Tested(), reference = with.Reference();
  for (size_t o = 0; o < plain.size(); ++o)
    EXPECT_TRUE(tested[o / each * (each + 1) + o % each].SameBits(plain[o])) << c.op << " output " << o;
  for (const std::vector<OwnedTensor>& results : {tested, reference})
    for (size_t t = 0; t < plain.size() / each; ++t) {
      const OwnedTensor &master = results[t * (each + 1)], &copy = results[t * (each + 1) + each];
      for (int64_t i = 0; i < copy.Count(); ++i)
        ASSERT_EQ(copy[i], ToFloat(ToBf16(static_cast<float>(master[i])))) << c.op << " tensor " << t << " at " << i;
    }
}

/// An update that does not apply leaves copies unchanged.
inline void CheckCopiesStay(const Case& c, size_t each) {
  const Case with = WithCopies(c, each);
  for (const std::vector<OwnedTensor>& results : {with.Tested(), with.Reference()})
    for (size_t o = 0; o < results.size(); ++o) EXPECT_TRUE(results[o].SameBits(with.outputs[o])) << c.op << " " << o;
}

}  // namespace espalier::testing
