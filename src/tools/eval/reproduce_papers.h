#pragma once
// The papers' own numbers. Each block names its table and what it was measured on; none of it was
// measured here.

#include <cstddef>
#include <string_view>

namespace pith::papers {

// BUZZ (arXiv 2410.23079), Table 3: perplexity at a cache of 50 and 100 rows, Llama-2-7B.
struct BuzzPerplexity {
  std::string_view method;
  double at_50, at_100;
};
inline constexpr BuzzPerplexity kBuzzPerplexity[] = {{"buzz", 9.394, 8.037},
                                                     {"buzz, log n", 12.322, 10.318},
                                                     {"h2o", 9.987, 8.881},
                                                     {"streaming_llm", 11.722, 9.330},
                                                     {"local", 194.803, 35.979}};
inline constexpr double kBuzzExactPerplexity = 7.382;

// BUZZ, Figure 4 and Table A: ROUGE-1, -2 and -L in per cent over T/w; CNN/DailyMail, stride 5, a
// cache of about 200.
struct BuzzThreshold {
  double ratio, rouge_1, rouge_2, rouge_l;
};
inline constexpr BuzzThreshold kBuzzThreshold[] = {
    {1.5, 25.3847, 6.9315, 23.0359}, {2.5, 25.8219, 7.8697, 23.6857},
    {3.5, 26.8306, 7.7600, 24.3394}, {4.5, 26.9212, 7.9514, 24.5161},
    {5.5, 26.0562, 7.4780, 23.8286}, {6.5, 25.6403, 7.3231, 23.4886}};

// BUZZ, Table 2: geometric mean of ROUGE-1, -2 and -L in per cent at a cache of 60 to 10% of the
// tokens; XSUM, Llama-2-7B.
inline constexpr int kBuzzBudgets[] = {60, 50, 40, 30, 20, 10};
struct BuzzScores {
  std::string_view method;
  double scores[6];
};
inline constexpr BuzzScores kBuzzScores[] = {{"buzz", {11.9, 12.1, 12.3, 11.9, 11.3, 10.9}},
                                             {"buzz, log n", {12.3, 12.0, 12.0, 11.6, 11.6, 10.4}},
                                             {"h2o", {11.5, 11.4, 11.6, 11.4, 11.8, 10.2}},
                                             {"streaming_llm", {11.9, 11.1, 11.2, 10.8, 10.0, 3.8}},
                                             {"local", {7.6, 4.4, 2.9, 1.8, 1.4, 0.1}}};

// BalanceKV, table of LongBench-E scores at a rate of 0.25; Llama-3.1-8B-Instruct.
struct BalanceScores {
  std::string_view method;
  double single_doc, multi_doc, summary, few_shot, synthetic, code, average;
};
inline constexpr BalanceScores kBalanceScores[] = {
    {"exact", 45.71, 45.32, 26.69, 68.62, 59.25, 46.17, 48.63},
    {"pyramidkv", 36.80, 41.54, 18.91, 64.88, 59.68, 42.38, 44.03},
    {"snapkv", 38.23, 42.61, 19.07, 64.65, 59.60, 43.28, 44.57},
    {"streaming_llm", 27.86, 39.05, 20.70, 66.16, 58.37, 42.91, 42.51},
    {"uniform", 37.17, 42.66, 24.31, 65.09, 58.30, 41.40, 44.82},
    {"balancekv", 36.97, 42.37, 23.82, 65.49, 58.46, 42.82, 44.99}};

// Thinformer Express, section 4: DeepSeek-R1-Distill-Llama-8B on MATH-500.
inline constexpr double kExpressCacheShare = 61;  ///< per cent of the cache at exact's accuracy
inline constexpr double kExpressTimeShare = 56;   ///< per cent of its time
inline constexpr double kExpressAttendMs = 35000, kExpressUpdateMs = 470;

// QJL, Table 1: F1 on LongBench's question answering, longchat-7b-v1.5-32k.
struct QjlScores {
  std::string_view method;
  double bits, narrative_qa, qasper, multi_qa_en, multi_qa_zh, hotpot_qa, two_wiki;
};
inline constexpr QjlScores kQjlScores[] = {
    {"exact", 16, 20.79, 29.42, 42.83, 34.33, 33.05, 24.14},
    {"kivi", 3, 20.96, 29.01, 40.93, 34.75, 32.79, 23.01},
    {"kvquant", 4.3, 20.14, 28.77, 44.22, 34.44, 34.06, 23.05},
    {"qjl", 3, 21.83, 29.44, 41.52, 34.42, 35.62, 23.60}};

// CSR, Tables 3 and 4: loss on values and keys, dictionaries of 8192 atoms, Llama-2-7B-chat.
struct CsrLoss {
  size_t pairs, parts;
  double values, keys;
};
inline constexpr CsrLoss kCsrLosses[] = {{4, 1, 0.259, 0.079}, {4, 2, 0.253, 0.068},
                                         {4, 4, 0.093, 0.052}, {8, 1, 0.213, 0.055},
                                         {8, 2, 0.094, 0.047}, {8, 4, 0.012, 0.037}};

// CSR, Table 5: loss by atoms per layer, Llama-3-8B-Instruct (8 KV heads).
struct CsrSize {
  size_t atoms;
  double keys, values;
};
inline constexpr CsrSize kCsrSizes[] = {
    {1024, 0.1023, 0.1935}, {2048, 0.0662, 0.1358}, {4096, 0.0585, 0.1131}, {8192, 0.0539, 0.1003}};

// CSR, Table 1: mean score on eleven tasks of LongBench, Llama-2-7B-chat.
struct CsrScore {
  std::string_view method;
  double average;
};
inline constexpr CsrScore kCsrScores[] = {{"exact", 37.26},       {"kivi, 4 bits", 37.19},
                                          {"csr, 4 bits", 37.58}, {"kivi, 2 bits", 37.17},
                                          {"csr, 2 bits", 36.60}, {"csr, 1.5 bits", 36.40},
                                          {"csr, 1 bit", 33.29}};

}  // namespace pith::papers
