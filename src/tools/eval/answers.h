#pragma once
// A sample of a retrieval task as a passage: the context is the prompt, the question and the right
// answer follow, and predictions of the answer's tokens count. How far a policy's predictions are
// from the exact cache's there says in nats what finding or not finding says in one bit, and costs
// no more than reading it.

#include "pith/tokenizer.h"
#include "tools/eval/perplexity.h"
#include "tools/eval/tasks.h"

namespace pith {

/// Of the sample's first question.
Passage answer_passage(const Sample& sample, const Tokenizer& tokenizer);

}  // namespace pith
