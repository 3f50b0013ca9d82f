// Specs of matmuls and of quantized operands.
#include "espalier/ops/matmul_spec.hpp"

#include <gtest/gtest.h>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Attributes Spec(const std::string& text) { return {{}, {{"spec", text}}}; }
MatmulSpec Matmul(const std::string& text) { return MatmulSpecOf(Spec(text)); }
QuantizeSpec Quantize(const std::string& text) { return QuantizeSpecOf(Spec(text)); }

struct Expected {
  std::string text, contracted;
  bool weight_gradient = false;
};
const std::vector<Expected> kExpected = {
    {"bsk,nk->bsn", "k"}, {"bsn,nk->bsk", "n"},        {"bsn,bsk->nk", "bs", true}, {"bsk,kn->bsn", "k"},
    {"bsn,kn->bsk", "n"}, {"bsk,bsn->kn", "bs", true}, {"nbs,kbs->nk", "bs", true}, {"kbs,nbs->kn", "bs", true},
    {"sk,nk->sn", "k"},   {"sk,kn->sn", "k"},          {"sk,sn->kn", "s"}};
const std::vector<Expected> kOfMatrices = {{"esk,enk->esn", "k"}, {"esk,ekn->esn", "k"}, {"esk,esn->ekn", "s"}};

TEST(MatmulSpec, ContractsTheDimsThatAreNotInTheResult) {
  for (const auto& [text, contracted, weight_gradient] : kExpected) {
    const MatmulSpec spec = Matmul(text);
    EXPECT_EQ(spec.Text(), text);
    EXPECT_EQ(spec.MakesWeightGradient(), weight_gradient) << text;
    for (const std::string& operand : {spec.a, spec.b}) {
      std::string found;
      for (char dim : operand)
        if (spec.IsContracted(dim)) found += dim;
      EXPECT_EQ(found, contracted) << text;
      // Contracted dims are together, so an operand is a matrix.
      const std::string inner = operand.substr(operand.size() - spec.InnerDims(operand));
      EXPECT_EQ(inner == contracted, spec.IsContracted(operand.back())) << text;
      EXPECT_TRUE(inner == contracted || operand == contracted + inner) << text;
    }
  }
}

TEST(MatmulSpec, MatricesOneByOneAreThoseOfTheirSpec) {
  for (const auto& [text, contracted, weight_gradient] : kOfMatrices) {
    const MatmulSpec each = Matmul(text);
    EXPECT_TRUE(each.HasMatrices()) << text;
    const MatmulSpec one = Matmul(each.a.substr(1) + "," + each.b.substr(1) + "->" + each.result.substr(1));
    EXPECT_FALSE(one.HasMatrices()) << text;
    EXPECT_EQ(each.InnerDims(each.a), one.InnerDims(one.a)) << text;
    EXPECT_EQ(each.InnerDims(each.b), one.InnerDims(one.b)) << text;
    EXPECT_EQ(each.MakesWeightGradient(), weight_gradient) << text;
    EXPECT_TRUE(each.IsContracted(contracted[0]) && !each.IsContracted('e')) << text;
  }
}

TEST(MatmulSpec, KnowsGradientsByTokensAndFeaturesOfTheResult) {
  EXPECT_TRUE(MatmulSpec::IsGradient(Matmul("bsn,nk->bsk").a));
  EXPECT_TRUE(MatmulSpec::IsGradient(Matmul("bsk,bsn->kn").b));
  const MatmulSpec forward = Matmul("bsk,nk->bsn");
  EXPECT_FALSE(MatmulSpec::IsGradient(forward.a) || MatmulSpec::IsGradient(forward.b));
}

TEST(MatmulSpec, OfExpertsContractsFeaturesOrRows) {
  for (const auto& [text, contracted, weight_gradient] : std::vector<Expected>{
           {"ebsk,enk->ebsn", "k"}, {"ebsn,enk->ebsk", "n"}, {"ebsn,ekn->ebsk", "n"}, {"ebsn,ebsk->enk", "bs", true}}) {
    const MatmulSpec spec = GroupedSpecOf(Spec(text));
    EXPECT_EQ(spec.Text(), text);
    EXPECT_EQ(spec.MakesWeightGradient(), weight_gradient) << text;
    for (char dim : spec.a + spec.b) EXPECT_EQ(spec.IsContracted(dim), contracted.find(dim) != contracted.npos) << text;
    EXPECT_EQ(MatmulSpec::IsGradient(spec.a), spec.a == "ebsn") << text;
  }
  for (const char* text : {"", "bsk,nk->bsn", "ebsk,ekn->ebsn"}) {
    EXPECT_FALSE(IsGroupedSpec(text)) << text;
    EXPECT_THROW(GroupedSpecOf(Spec(text)), InvariantError) << text;
  }
}

TEST(MatmulSpec, OthersAreRefused) {
  for (const char* text : {"", "bsk", "bsk,nk", "ab,bc->ac", "bsk,nk->bsk", "nk->nk,y"}) {
    EXPECT_FALSE(IsMatmulSpec(text)) << text;
    EXPECT_THROW(Matmul(text), InvariantError) << text;
  }
  EXPECT_THROW(MatmulSpecOf({}), InvariantError) << "no spec";
}

TEST(QuantizeSpec, SaysHowACopyIsStoredAndScaled) {
  for (const auto& [text, transposed, rows] : {std::tuple{"bsk->bsk,y", false, false},
                                               {"bsk->kbs,y", true, false},
                                               {"nk->nk,y", false, false},
                                               {"nk->kn,y", true, false},
                                               {"bsk->bsk,yu", false, false},
                                               {"bsk->kbs,yu", true, false},
                                               {"nk->nk,yu", false, false},
                                               {"nk->kn,yu", true, false},
                                               {"bsk->bsk,bsy", false, true},
                                               {"bsk->kbs,ky", true, true},
                                               {"nk->nk,ny", false, true},
                                               {"nk->kn,ky", true, true},
                                               {"ebsk->ebsk,ebs", false, true},
                                               {"enk->enk,e", false, false},
                                               {"enk->ekn,e", true, false},
                                               {"enk->enk,en", false, true},
                                               {"enk->ekn,ek", true, true}}) {
    const QuantizeSpec spec = Quantize(text);
    EXPECT_EQ(spec.Text(), text);
    EXPECT_EQ(spec.IsTransposed(), transposed) << text;
    EXPECT_EQ(spec.HasRowScales(), rows) << text;
    EXPECT_EQ(spec.HasBlockScales(), spec.scales == "yu") << text;
    EXPECT_EQ(spec.IsOfExpertRows(), text[0] == 'e' && text[1] == 'b') << text;
    EXPECT_EQ(spec.IsOfExpertWeights(), text[0] == 'e' && text[1] == 'n') << text;
  }
  for (const char* text : {"", "nk->nk", "bsk->skb,y", "bsk,nk->bsn"}) EXPECT_THROW(Quantize(text), InvariantError);
}

}  // namespace
}  // namespace espalier
