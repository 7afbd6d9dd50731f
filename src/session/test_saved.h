#pragma once
// For tests of every device: a session that was saved to a file and restored from it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "pith/generate.h"
#include "pith/saved.h"
#include "pith/session.h"

namespace pith::test {

/// It has the tokens and ranges of the one that was saved, can draw at once, and goes on as that
/// does, and so does its fork. `go_on`: what a session says next, as values that can be compared.
template <class GoOn>
void expect_goes_on_from_file(const std::shared_ptr<const Model>& model,
                              const StandaloneOptions& options, std::span<const int32_t> ids,
                              const std::filesystem::path& path, const GoOn& go_on) {
  Session whole(model, options);
  whole.append(ids);
  whole.save(path, {.replace = true});
  Session other = Session::restore(model, path, options);
  EXPECT_EQ(other.tokens(), ids.size());
  EXPECT_TRUE(std::ranges::equal(other.token_ids(), ids));
  EXPECT_EQ(to_string(other.options().protect), to_string(options.protect));
  Sampler a({.temperature = 1, .seed = 3}), b({.temperature = 1, .seed = 3});
  EXPECT_EQ(whole.sample(a), other.sample(b));
  Session fork = other.fork();
  const auto expected = go_on(whole);
  EXPECT_EQ(go_on(other), expected);
  EXPECT_EQ(go_on(fork), expected);
}

}  // namespace pith::test
