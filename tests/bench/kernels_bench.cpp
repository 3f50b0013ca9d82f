// Times each cpu kernel at the shapes of a GPT-2-small-sized Llama (1 sequence of 1024, dim 768, 12 heads of 64, ffn
// 2048, vocab 50304), and its reference at a fraction of them; both as rates, so that they can be compared.
//   kernels_bench [--benchmark_filter=REGEX]     threads: OMP_NUM_THREADS, or all cores
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "kernels/row_kernels.hpp"

namespace espalier {
namespace {

using testing::OwnedTensor;
using testing::Random;
using testing::RowKernel;
using testing::RowMaker;
using testing::Width;

/// Extents of the model; the reference's are smaller, being hundreds of times slower.
struct Model {
  int64_t seq, dim, heads, ffn, vocab, parameters;
  int64_t HeadDim() const { return dim / heads; }
};
constexpr Model kFull{1024, 768, 12, 2048, 50304, 50304 * 768};
constexpr Model kSmall{64, 128, 2, 256, 512, 512 * 128};

/// One call with its work: floating-point operations where they bound the time, else bytes that must move.
struct Call {
  std::vector<OwnedTensor> inputs, outputs;
  Attributes attributes = {};
  double flops = 0;
  double bytes = 0;  ///< 0: all inputs and outputs

  double Bytes() const {
    if (bytes > 0) return bytes;
    double sum = 0;
    for (const auto* tensors : {&inputs, &outputs}) {
      for (const OwnedTensor& x : *tensors) sum += static_cast<double>(x.Count() * SizeOf(x.dtype()));
    }
    return sum;
  }
};

using Maker = std::function<Call(Random&, const Model&, Dtype)>;

Call MakeGemm(Random& r, Dtype t, int64_t rows, int64_t n, int64_t k, const char* spec) {
  const OwnedTensor x = r.Real(t, {1, rows, k}), w = r.Real(t, {n, k}), dy = r.Real(t, {1, rows, n});
  Call c{{}, {}, {{}, {{"spec", spec}}}, 2.0 * double(rows) * double(n) * double(k)};
  const std::string_view s = spec;
  if (s == "bsk,nk->bsn") return c.inputs = {x, w}, c.outputs = {OwnedTensor(t, {1, rows, n})}, c;
  if (s == "bsn,nk->bsk") return c.inputs = {dy, w}, c.outputs = {OwnedTensor(t, {1, rows, k})}, c;
  return c.inputs = {dy, x}, c.outputs = {OwnedTensor(Dtype::kF32, {n, k})}, c;
}

/// Causal: half the score matrix.
Call MakeAttention(Random& r, const Model& m, Dtype t) {
  const OwnedTensor q = r.Real(t, {1, m.seq, m.dim});
  return {{q, q, q},
          {q, OwnedTensor(Dtype::kF32, {1, m.heads, m.seq})},
          {{{"head_dim", m.HeadDim()}, {"causal", 1}}, {}},
          2.0 * double(m.seq) * double(m.seq) * double(m.dim)};
}

Call MakeAttentionGrad(Random& r, const Model& m, Dtype t) {
  Call c = MakeAttention(r, m, t);
  c.inputs.insert(c.inputs.end(), {c.outputs[0], c.outputs[1], c.inputs[0]});
  for (int64_t i = 0; i < c.inputs[4].Count(); ++i) c.inputs[4].Set(i, 8);
  c.outputs = {c.inputs[0], c.inputs[0], c.inputs[0]};
  c.flops *= 2.5;
  return c;
}

/// Heads of latent attention (DeepSeek-V3): keys of 192, values of 128.
Call MakeWideKeys(Random& r, const Model& m, Dtype t) {
  constexpr int64_t kKey = 192, kValue = 128;
  const OwnedTensor q = r.Real(t, {1, m.seq, m.heads * kKey}), v = r.Real(t, {1, m.seq, m.heads * kValue});
  return {{q, q, v},
          {v, OwnedTensor(Dtype::kF32, {1, m.heads, m.seq})},
          {{{"head_dim", kKey}, {"value_dim", kValue}, {"causal", 1}}, {}},
          double(m.seq * m.seq * m.heads * (kKey + kValue))};
}
Call MakeWideKeysGrad(Random& r, const Model& m, Dtype t) {
  Call c = MakeWideKeys(r, m, t);
  c.inputs.insert(c.inputs.end(), {c.outputs[0], c.outputs[1], c.inputs[2]});
  for (int64_t i = 0; i < c.inputs[4].Count(); ++i) c.inputs[4].Set(i, 8);
  c.outputs = {c.inputs[0], c.inputs[0], c.inputs[2]};
  c.flops = double(m.seq * m.seq * m.heads * (3 * 192 + 2 * 128));
  return c;
}

/// The same sizes as a block of a ring of two: the first rank's queries of its late chunk see all keys of the other
/// rank, those of its early chunk none. As much is visible as in causal attention of one sequence.
Call AsHop(Call call) {
  const auto length = double(2 * call.inputs[0].shape()[1]);
  call.attributes.numbers.insert({{"cp", 2}, {"length", length}, {"hop", 1}});
  for (OwnedTensor& y : call.outputs) y = OwnedTensor(Dtype::kF32, y.shape());
  return call;
}
Call MakeHop(Random& r, const Model& m, Dtype t) { return AsHop(MakeAttention(r, m, t)); }
Call MakeHopGrad(Random& r, const Model& m, Dtype t) { return AsHop(MakeAttentionGrad(r, m, t)); }

Call MakeAdamw(Random& r, const Model& m, Dtype moments) {
  const OwnedTensor x = r.Real(Dtype::kF32, {m.parameters}, 0, 1), moment = r.Real(moments, {m.parameters}, 0, 1);
  Call c{{},
         {x, moment, moment},
         {{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decaying", 1}}, {}}};
  for (double v : {1e-3, 5.0, 1.0, 1.0}) c.inputs.push_back(r.Real(Dtype::kF32, {}, v, v));
  c.inputs.insert(c.inputs.end(), {x, moment, moment, x});
  if (moments == Dtype::kBf16) c.attributes.texts["rounding"] = "0123456789abcdef";
  return c;
}

struct Bench {
  std::string op, name;
  Maker make;
};

std::vector<Bench> Gemms() {
  std::vector<Bench> list;
  const std::pair<const char*, const char*> specs[] = {
      {"bsk,nk->bsn", "y"}, {"bsn,nk->bsk", "dx"}, {"bsn,bsk->nk", "dW"}};
  const std::tuple<const char*, int64_t Model::*, int64_t Model::*> shapes[] = {{"attention", &Model::dim, &Model::dim},
                                                                                {"up", &Model::ffn, &Model::dim},
                                                                                {"down", &Model::dim, &Model::ffn},
                                                                                {"head", &Model::vocab, &Model::dim}};
  for (const auto& [shape, n, k] : shapes) {
    for (const auto& [spec, result] : specs) {
      list.push_back({"matmul", std::string("matmul ") + shape + " " + result,
                      [=](Random& r, const Model& m, Dtype t) { return MakeGemm(r, t, m.seq, m.*n, m.*k, spec); }});
    }
  }
  return list;
}

int64_t WidthIn(const Model& m, Width width) {
  switch (width) {
    case Width::kModel:
      return m.dim;
    case Width::kFfn:
      return m.ffn;
    case Width::kVocab:
      return m.vocab;
    case Width::kHead:
      return m.HeadDim();
    case Width::kHalfHead:
      return m.HeadDim() / 2;
  }
  return 0;
}

/// Their time is that of reading the weight. "bsk,nk->bsn" is dense along the contracted dim, "bsn,nk->bsk" is not.
std::vector<Bench> GemmsOfFewRows() {
  std::vector<Bench> list;
  const auto add = [&](int64_t rows, const char* shape, int64_t Model::*n, const char* spec) {
    list.push_back({"matmul", std::string("matmul ") + shape + " of " + std::to_string(rows) + " " + spec,
                    [=](Random& r, const Model& m, Dtype t) {
                      Call call = MakeGemm(r, t, rows, m.*n, m.dim, spec);
                      call.flops = 0;
                      return call;
                    }});
  };
  for (const int64_t rows : {1, 2, 4, 5}) {
    add(rows, "head", &Model::vocab, "bsk,nk->bsn");
    add(rows, "head", &Model::vocab, "bsn,nk->bsk");
    add(rows, "up", &Model::ffn, "bsk,nk->bsn");
    add(rows, "up", &Model::ffn, "bsn,nk->bsk");
  }
  return list;
}

/// The table that the tests use, too. Values of statistics do not change the work.
std::vector<Bench> RowWise() {
  std::vector<Bench> list;
  for (const RowKernel& kernel : testing::RowKernels()) {
    const std::string op = kernel.name.substr(0, kernel.name.find(' '));
    list.push_back({op, kernel.name, [=](Random& r, const Model& m, Dtype t) {
                      RowMaker maker{r, t, {1, m.seq}, WidthIn(m, kernel.width), m.heads, m.vocab};
                      testing::Case c = kernel.make(maker);
                      Call call{std::move(c.inputs), std::move(c.outputs), c.attributes};
                      if (op == "embedding") call.bytes = 2.0 * double(m.seq * m.dim * SizeOf(t));
                      return call;
                    }});
  }
  return list;
}

std::vector<Bench> OncePerStep() {
  return {
      {"rope_table", "rope_table",
       [](Random& r, const Model& m, Dtype) {
         return Call{{r.Integer({m.seq}, 0, 1024)},
                     {OwnedTensor(Dtype::kF32, {m.seq, 64})},
                     {{{"head_dim", 64}, {"theta", 5e5}}, {}}};
       }},
      {"sum_squares", "sum_squares",
       [](Random& r, const Model& m, Dtype) {
         return Call{{r.Real(Dtype::kF32, {m.parameters})}, {OwnedTensor(Dtype::kF32, {})}};
       }},
      {"adamw", "adamw", MakeAdamw},
      {"adamw", "adamw with moments of bf16",
       [](Random& r, const Model& m, Dtype) { return MakeAdamw(r, m, Dtype::kBf16); }},
      {"cast", "cast f32 to bf16",
       [](Random& r, const Model& m, Dtype) {
         return Call{{r.Real(Dtype::kF32, {m.parameters})}, {OwnedTensor(Dtype::kBf16, {m.parameters})}};
       }},
  };
}

void Time(benchmark::State& state, Kernel kernel, const Bench& bench, const Model& model, Dtype dtype) {
  Random random;
  Call call = bench.make(random, model, dtype);
  std::vector<Tensor> in, out;
  for (const OwnedTensor& x : call.inputs) in.push_back(x.View());
  for (const OwnedTensor& y : call.outputs) out.push_back(y.View());
  const KernelCall kernel_call{.inputs = in, .outputs = out, .attributes = &call.attributes};
  for (auto _ : state) kernel(kernel_call);
  const double done = (call.flops > 0 ? call.flops : call.Bytes()) * static_cast<double>(state.iterations());
  state.counters[call.flops > 0 ? "FLOP/s" : "B/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
}

void Register(const std::vector<Bench>& list, const std::vector<Dtype>& dtypes) {
  for (const Bench& bench : list) {
    for (Dtype dtype : dtypes) {
      const std::string name = bench.name + "/" + std::string(Name(dtype));
      const auto add = [&](const std::string& title, Kernel kernel, const Model& model) {
        benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& s) { Time(s, kernel, bench, model, dtype); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      };
      add(name + "/cpu", FindCpuKernel(bench.op), kFull);
      add(name + "/reference", FindReferenceKernel(bench.op), kSmall);
    }
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  using espalier::Dtype;
  benchmark::Initialize(&argc, argv);
  const char* threads = std::getenv("OMP_NUM_THREADS");
  espalier::SetCpuThreads(threads == nullptr ? static_cast<int>(std::thread::hardware_concurrency())
                                             : std::max(1, std::atoi(threads)));
  benchmark::AddCustomContext("level", std::string(espalier::CpuLevel()));
  const std::vector<Dtype> both = {Dtype::kF32, Dtype::kBf16};
  espalier::Register(espalier::Gemms(), both);
  espalier::Register(espalier::GemmsOfFewRows(), both);
  espalier::Register({{"attention", "attention", espalier::MakeAttention},
                      {"attention", "attention hop", espalier::MakeHop},
                      {"attention", "attention 192 128", espalier::MakeWideKeys},
                      {"attention_grad", "attention_grad", espalier::MakeAttentionGrad},
                      {"attention_grad", "attention_grad 192 128", espalier::MakeWideKeysGrad},
                      {"attention_grad", "attention_grad hop", espalier::MakeHopGrad}},
                     both);
  espalier::Register(espalier::RowWise(), both);
  espalier::Register(espalier::OncePerStep(), {Dtype::kF32});
  benchmark::RunSpecifiedBenchmarks();
}
