#pragma once
// Text to tokens and back, in llama.cpp's form.

#include "serve/gate.h"
#include "serve/preparer.h"
#include "serve/visit.h"

namespace pith::serve {

class TokenEndpoints {
 public:
  TokenEndpoints(const Preparer& preparer, const GateOptions& gate_options)
      : preparer_(preparer), gate_options_(gate_options) {}

  void tokenize(Visit& v);
  void detokenize(Visit& v);
  void apply_template(Visit& v);
  void count_tokens(Visit& v);
  void count_message_tokens(Visit& v);

 private:
  const Preparer& preparer_;
  const GateOptions gate_options_;
};

}  // namespace pith::serve
