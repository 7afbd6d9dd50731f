// QJL: distortion of inner products against bits, with the orthogonalised sketch; outlying channels
// (Figure 2) and what a sketch of their own saves; scores at 3 bits (Table 1) on our tasks.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "core/thread_pool.h"
#include "model/forward.h"
#include "model/loaders/weights.h"
#include "policy/registry.h"
#include "tools/eval/reproduce_bench.h"
#include "tools/eval/reproduce_papers.h"
#include "tools/eval/reproductions.h"

namespace pith {
namespace {

/// Keys of one KV head and queries of its group, of a text's last tokens.
struct HeadSample {
  size_t layer = 0;
  std::vector<float> keys;     // [T, D]
  std::vector<float> queries;  // [M, D]
};

struct ModelSample {
  size_t dim = 0;
  std::vector<HeadSample> heads;  // [L * G]
};

constexpr size_t kQueryTokens = 16;

ModelSample sample_heads(const ReproduceBench& bench, size_t tokens) {
  const ReproduceOptions& o = bench.options();
  const ModelConfig& c = o.model->config();
  ThreadPool pool(o.session.threads);
  MemoryCounter memory(o.session.memory_limit);
  const Context context{pool, memory, kernels_for(o.session.isa)};
  ModelSample sample;
  sample.dim = static_cast<size_t>(c.head_dim);
  const auto kv_heads = static_cast<size_t>(c.kv_heads);
  const auto query_heads = static_cast<size_t>(c.query_heads), group = query_heads / kv_heads;
  Forward forward(context, *o.model, tokens, MatmulPrecision::kF32);
  forward.set_observer([&](const LayerStep& step) {
    for (size_t g = 0; g < kv_heads; ++g) {
      HeadSample& head = sample.heads.emplace_back();
      head.layer = static_cast<size_t>(step.layer);
      for (size_t t = 0; t < step.tokens; ++t) {
        const float* k = step.k + (t * kv_heads + g) * sample.dim;
        head.keys.insert(head.keys.end(), k, k + sample.dim);
      }
      for (size_t t = step.tokens - kQueryTokens; t < step.tokens; ++t) {
        const float* q = step.q + (t * query_heads + g * group) * sample.dim;
        head.queries.insert(head.queries.end(), q, q + group * sample.dim);
      }
    }
  });
  const CacheShape shape{c.layers, c.query_heads, c.kv_heads, c.head_dim, c.sliding_window, tokens};
  const LayerRopes ropes = o.model->weights().ropes(tokens);
  KvCache cache(context, shape, Policy::parse("local(window=1)"), 0,
                ropes);  // the pass attends to its own rows
  forward.run(cache, std::span(o.text).first(tokens), 0);
  return sample;
}

double norm(const float* x, size_t dim) {
  double sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

/// Errors of estimated inner products over |q| |k|.
struct Distortion {
  double squares = 0, sum = 0, theory = 0, count = 0;
  double deviation() const { return std::sqrt(squares / count); }
  double bias() const { return sum / count; }
  /// Of the Gaussian sketch with m bits: sqrt((pi / 2 - cos^2) / m).
  double expected(size_t bits) const {
    return std::sqrt(theory / count / static_cast<double>(bits));
  }
};

/// One head's keys under a codec of the registry.
class CodedHead {
 public:
  CodedHead(const Context& context, const PolicyPart& part, const ModelSample& sample,
            const HeadSample& head, uint64_t seed)
      : sample_(sample), head_(head) {
    const CodecRow& row = codec_row(part.name);
    codec_ = row.make(row.read(part), Side::kKeys);
    RowsRequest request;
    request.dim = sample.dim, request.seed = seed;
    request.layer = static_cast<uint32_t>(head.layer);
    rows_ = codec_->make_rows(context, request);
    rows_->append(head.keys.data(), sample.dim, head.keys.size() / sample.dim);
  }

  void add_to(Distortion& d) const {
    const size_t dim = sample_.dim, keys = head_.keys.size() / dim;
    const size_t queries = head_.queries.size() / dim;
    std::vector<float> prepared(rows_->prepared_size(queries)), scores(queries * keys);
    rows_->prepare(prepared.data(), head_.queries.data(), queries);
    rows_->scores(scores.data(), keys, head_.queries.data(), prepared.data(), queries, 0, keys, 1);
    for (size_t m = 0; m < queries; ++m) {
      const float* q = head_.queries.data() + m * dim;
      const double q_norm = norm(q, dim);
      for (size_t t = 0; t < keys; ++t) {
        const float* k = head_.keys.data() + t * dim;
        double product = 0;
        for (size_t i = 0; i < dim; ++i) product += double{q[i]} * k[i];
        const double size = q_norm * norm(k, dim), error = (scores[m * keys + t] - product) / size;
        d.squares += error * error, d.sum += error, ++d.count;
        d.theory += std::numbers::pi / 2 - product * product / (size * size);
      }
    }
  }
  double bits() const {
    return 8 * codec_->bytes_per_row(sample_.dim) / static_cast<double>(sample_.dim);
  }

 private:
  const ModelSample& sample_;
  const HeadSample& head_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<CodedRows> rows_;
};

PolicyPart qjl_part(size_t bits, const std::string& sketch, size_t outliers, size_t out_bits) {
  PolicyPart part{"qjl",
                  {{"paper", "true"},
                   {"m", std::to_string(bits)},
                   {"sketch", sketch},
                   {"outliers", std::to_string(outliers)}}};
  if (outliers > 0) part.parameters["m_out"] = std::to_string(out_bits);
  return part;
}

struct Distorted {
  Distortion all;
  std::vector<Distortion> layers;
  double bits = 0;
};

Distorted distort(const ReproduceBench& bench, const ModelSample& sample, const PolicyPart& part) {
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for(bench.options().session.isa)};
  Distorted d;
  d.layers.resize(sample.heads.back().layer + 1);
  for (uint64_t s = 0; s < bench.options().seeds; ++s)
    for (const HeadSample& head : sample.heads) {
      const CodedHead coded(context, part, sample, head, bench.options().session.seed + s);
      coded.add_to(d.layers[head.layer]);
      coded.add_to(d.all);
      d.bits = coded.bits();
    }
  return d;
}

/// Hears of settings done.
void tick(const ReproduceBench& bench, const char* stage, size_t done, size_t total) {
  const auto& progress = bench.options().progress;
  if (progress && !progress(stage, done, total)) throw ReproduceCancelled{};
}

void distortion_table(const ReproduceBench& bench, const ModelSample& sample) {
  const std::vector<size_t> multiples =
      bench.quick() ? std::vector<size_t>{1, 4} : std::vector<size_t>{1, 2, 4, 8, 16};
  const std::vector<std::string> sketches{"gaussian", "ortho", "hadamard"};
  ReproducedTable t;
  t.id = "distortion", t.title = "Distortion of inner products against the bits of the sketch";
  t.source =
      "QJL, Lemma 3.5 (error |q||k| / sqrt(m) for a Gaussian sketch) and section 4.1 "
      "(orthogonalising 'almost always improves'); no numbers";
  t.protocol = fmt::format(
      "the model's keys over {} tokens in every layer and the last {} tokens' queries, no "
      "outliers, "
      "{} seeds: root mean square of (estimate - <q,k>) / |q||k|; theory: sqrt((pi/2 - cos^2) / m)",
      sample.heads[0].keys.size() / sample.dim, kQueryTokens, bench.options().seeds);
  t.columns = {{"m per channel", 1}, {"theory", 4},   {"gaussian", 4},
               {"ortho", 4},         {"hadamard", 4}, {"bias, ortho", 5}};
  std::vector<double> sizes, gaussian, ortho;
  double off = 0;
  for (size_t i = 0; i < multiples.size(); ++i) {
    const size_t bits = multiples[i] * sample.dim / 2;
    TableRow row{fmt::format("m = {}", bits), "", {{0.5 * static_cast<double>(multiples[i])}, {}}};
    for (size_t s = 0; s < sketches.size(); ++s) {
      // The sketches of fewer bits than channels are there as well: rows of one block.
      const Distorted d = distort(bench, sample, qjl_part(bits, sketches[s], 0, 0));
      row.cells[1].value = d.all.expected(bits);
      row.cells.push_back({d.all.deviation()});
      if (s == 0) gaussian.push_back(d.all.deviation());
      if (s == 1) ortho.push_back(d.all.deviation());
      if (s == 0) off = std::max(off, std::abs(d.all.deviation() / d.all.expected(bits) - 1));
      if (s == 1) row.cells.push_back({d.all.bias()});
      tick(bench, "distortion", i * sketches.size() + s + 1, multiples.size() * sketches.size());
    }
    std::swap(row.cells[4], row.cells[5]);
    sizes.push_back(static_cast<double>(bits));
    t.rows.push_back(std::move(row));
  }
  size_t better = 0;
  for (size_t i = 0; i < sizes.size(); ++i) better += ortho[i] < gaussian[i];
  t.claims = {
      {"error of the Gaussian sketch is the theory's", fmt::format("within {:.1f}%", 100 * off),
       off < 0.15, Form::kPaper, "qjl(paper=true,outliers=0,sketch=gaussian)"},
      {"orthogonal rows almost always improve it",
       fmt::format("at {} of {} sizes; error {:.2f} of Gaussian's at {:.0f} bits", better,
                   sizes.size(), ortho.back() / gaussian.back(), sizes.back()),
       better == sizes.size(), Form::kPaper, "qjl(paper=true,outliers=0,sketch=ortho)"}};
  bench.finish(t);
}

/// How channels of the keys differ in size, in one layer.
struct Channels {
  double largest = 0;  ///< mean magnitude of the largest channel over the median channel's
  double eight = 0;    ///< share of the squared norm in the eight largest, %
};

Channels channels_of(const ModelSample& sample, size_t layer) {
  Channels c;
  double heads = 0;
  for (const HeadSample& head : sample.heads) {
    if (head.layer != layer) continue;
    std::vector<double> size(sample.dim), square(sample.dim);
    for (size_t i = 0; i < head.keys.size(); ++i) {
      size[i % sample.dim] += std::abs(head.keys[i]);
      square[i % sample.dim] += double{head.keys[i]} * head.keys[i];
    }
    std::sort(size.begin(), size.end(), std::greater<>());
    std::sort(square.begin(), square.end(), std::greater<>());
    double all = 0, top = 0;
    for (size_t i = 0; i < square.size(); ++i) all += square[i], top += i < 8 ? square[i] : 0;
    c.largest += size[0] / size[size.size() / 2], c.eight += 100 * top / all, ++heads;
  }
  return {c.largest / heads, c.eight / heads};
}

void outlier_table(const ReproduceBench& bench, const ModelSample& sample) {
  const size_t dim = sample.dim, layers = sample.heads.back().layer + 1;
  const Distorted with = distort(bench, sample, qjl_part(2 * dim, "ortho", 8, dim));
  const Distorted without = distort(bench, sample, qjl_part(3 * dim, "ortho", 0, 0));
  tick(bench, "outliers", 2, 2);
  ReproducedTable t;
  t.id = "outliers", t.title = "Outlying channels of the keys, by layer";
  t.source =
      "QJL, Figure 2 (Llama-2, an image): none in the first layers, about four channels in the "
      "deep "
      "ones";
  t.protocol =
      "largest: the largest channel's mean magnitude over the median channel's; top 8: their share "
      "of the squared norm (even: 8 / D); distortion at 3 bits of sketch per channel, with 8 "
      "outlying "
      "channels of 32 rows sketched apart and without";
  t.columns = {{"largest", 2}, {"top 8, %", 1}, {"with outliers", 4}, {"without", 4}, {"ratio", 3}};
  size_t better = 0;
  std::vector<double> share;
  for (size_t l = 0; l < layers; ++l) {
    const Channels c = channels_of(sample, l);
    const double a = with.layers[l].deviation(), b = without.layers[l].deviation();
    better += a < b, share.push_back(c.eight);
    t.rows.push_back({fmt::format("layer {}", l), "", {{c.largest}, {c.eight}, {a}, {b}, {a / b}}});
  }
  t.claims = {{"outliers are rare in the first layers and grow with depth",
               fmt::format("top 8 channels hold {:.1f}% in layer 0, {:.1f}% in layer {}",
                           share.front(), share.back(), layers - 1),
               share.back() > share.front(), Form::kNone, ""},
              {"a sketch of their own significantly reduces the distortion",
               fmt::format("smaller in {} of {} layers at {:.2f} against {:.2f} bits per channel",
                           better, layers, with.bits, without.bits),
               better == layers, Form::kPaper, "qjl(paper=true,outliers=8)"}};
  bench.finish(t);
}

void score_table(const ReproduceBench& bench) {
  const size_t tokens = bench.quick() ? 512 : 2048;
  std::vector<uint64_t> samples(bench.quick() ? 1 : 4);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i;
  const std::vector<NamedPolicy> policies{
      {"exact", "exact"},
      {"kivi", "exact+kivi(bits=2),window=32"},
      {"int4", "exact+int4,window=32"},
      {"qjl", "exact+qjl(paper=true),window=32", true, Form::kPaper},
      {"qjl, gaussian", "exact+qjl(paper=true,sketch=gaussian),window=32", true, Form::kPaper}};
  const std::vector<std::string> tasks = bench.quick()
                                             ? std::vector<std::string>{"facts"}
                                             : std::vector<std::string>{"facts", "docqa", "kv"};
  std::vector<std::vector<PolicyScore>> scores;
  for (const std::string& task : tasks)
    scores.push_back(bench.scores(task, {task, tokens, samples}, policies));
  PerplexityOptions protocol;
  protocol.mode = PerplexityMode::kContinue, protocol.window = tokens;
  protocol.score = bench.quick() ? 16 : 256, protocol.pieces = bench.quick() ? 1 : 2;
  const auto quality = bench.quality("divergence", protocol, policies);

  ReproducedTable t;
  t.id = "scores", t.title = "Codecs at about 3 bits";
  t.source = "QJL, Table 1 (longchat-7b-v1.5-32k, F1 on six tasks of LongBench: here their mean)";
  t.protocol = fmt::format(
      "our tasks of {} tokens, {} samples each, answers found, %; KL and perplexity over {} tokens "
      "of "
      "the text after a prompt; bits: the ledger's, everything included; the newest 32 rows stay "
      "exact",
      tokens, samples.size(), protocol.score * protocol.pieces);
  t.columns = {{"bits", 2}};
  for (const std::string& task : tasks) t.columns.push_back({task, 1});
  t.columns.insert(t.columns.end(),
                   {{"perplexity", 3}, {"KL", 4}, {"paper bits", 1, true}, {"paper F1", 2, true}});
  for (size_t p = 0; p < policies.size(); ++p) {
    TableRow row{policies[p].name, policies[p].policy, {{scores[0][p].ledger.effective_bits()}}};
    for (const auto& of_task : scores) row.cells.push_back(of_task[p].score);
    row.cells.insert(row.cells.end(), {quality[p].perplexity(), quality[p].divergence(), {}, {}});
    for (const auto& paper : papers::kQjlScores) {
      if (paper.method != policies[p].name) continue;
      row.cells[row.cells.size() - 2].value = paper.bits;
      row.cells.back().value = (paper.narrative_qa + paper.qasper + paper.multi_qa_en +
                                paper.multi_qa_zh + paper.hotpot_qa + paper.two_wiki) /
                               6;
    }
    t.rows.push_back(std::move(row));
  }
  const auto kl = [&](size_t p) { return *quality[p].divergence().value; };
  const double ratio = std::exp(*quality[3].ln_ratio().value);
  const auto bits = [&](size_t p) { return scores[0][p].ledger.effective_bits(); };
  t.claims = {
      policies[3].claim("3 bits lose nothing",
                        fmt::format("perplexity {:.4f} of exact's at {:.2f} bits", ratio, bits(3)),
                        ratio < 1.01),
      policies[3].claim("at least as good as KIVI at its bits",
                        fmt::format("divergence {:.4f} at {:.2f} bits and {:.4f} at {:.2f}", kl(3),
                                    bits(3), kl(1), bits(1)),
                        kl(3) <= kl(1)),
      policies[3].claim("orthogonal rows better than Gaussian ones",
                        fmt::format("divergence {:.4f} and {:.4f}", kl(3), kl(4)), kl(3) < kl(4))};
  bench.finish(t);
}

}  // namespace

void reproduce_qjl(const ReproduceOptions& options) {
  const ReproduceBench bench(options);
  tick(bench, "distortion", 0, 1);
  const ModelSample sample = sample_heads(bench, bench.quick() ? 128 : 1024);
  bench.table("distortion", [&] { distortion_table(bench, sample); });
  bench.table("outliers", [&] { outlier_table(bench, sample); });
  bench.table("scores", [&] { score_table(bench); });
}

}  // namespace pith
