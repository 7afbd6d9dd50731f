#pragma once
// Shared by the makers of tasks.

#include <functional>
#include <string>
#include <vector>

#include "tools/eval/tasks.h"
#include "tools/eval/words.h"

namespace pith {

/// The choices of one sample: differs by task, number and seed.
Dice sample_dice(std::string_view task, const SampleRequest& request);

/// The largest size for which `make(size)` leaves room for its questions and answers, found by
/// doubling and halving (tokens grow with size). Throws kInvalidArgument if not even the size
/// `least` fits.
Sample largest_sample(const SampleRequest& request, size_t least,
                      const std::function<Sample(size_t size)>& make);

/// Tokens that a sample takes at most: the context, then one turn, or all turns of a conversation.
size_t tokens_of(const Sample& sample, const SampleRequest& request);

// The makers; tasks.cc lists them.
Sample make_passkey(const SampleRequest& request);
Sample make_facts(const SampleRequest& request);
Sample make_multi_turn(const SampleRequest& request);
Sample make_docqa(const SampleRequest& request);
Sample make_kv(const SampleRequest& request);
Sample make_niah_single_1(const SampleRequest& request);
Sample make_niah_multikey_2(const SampleRequest& request);
Sample make_niah_multikey_3(const SampleRequest& request);
Sample make_vt(const SampleRequest& request);
Sample make_cwe(const SampleRequest& request);
Sample make_fwe(const SampleRequest& request);

/// RULER's noise, five sentences a line.
inline constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

}  // namespace pith
