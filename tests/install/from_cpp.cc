#include <cstdio>

#include "pith/generate.h"
#include "pith/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const auto model = pith::Model::load(argv[1]);
  pith::StandaloneOptions options;
  options.policy = pith::Policy::parse("streaming_llm(window=60)");
  pith::Session session(model, options);
  pith::GenerateOptions generate;
  generate.max_tokens = 8;
  const auto prompt = model->tokenizer().encode("The old house");
  const auto answer = pith::generate(session, prompt, generate);
  std::printf("%s\n%zu bytes\n", answer.text.c_str(), session.ledger().cache_bytes());
  return answer.text.empty();
}
